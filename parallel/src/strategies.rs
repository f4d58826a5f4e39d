//! Lists of strategies, one per family. A new strategy is a file in its family's folder and a line in the
//! family's list. Then layouts can name it, every property test draws it, and the commands and the book's
//! table show it.
//!
//! | family | a file gives | list |
//! |---|---|---|
//! | layers | layers in place of the usual ones, or around a block ([`Strategy`]) | [`tensor`] |
//! | token dispatchers | dispatch to experts and combine ([`moe::TokenDispatcher`]) | [`moe::dispatcher`] |
//! | dealing of a sequence's tokens | tokens of a rank ([`Dealing`](crate::dealing::Dealing)) | [`dealing`] |
//! | attention's core over dealt tokens | a layer in its place ([`Strategy`]) | [`attention`] |
//! | sharding of parameters at rest | state to shard ([`StateSplit`](crate::data::StateSplit)) | [`data`] |
//! | state off the device | the store ([`Offload`](crate::offload::Offload)) | [`offload`] |
//! | pipeline schedules | which rank runs what when ([`Schedule`](crate::Schedule)) | [`pipeline`] |
use crate::{attention, data, dealing, offload, pipeline, tensor};
use kernels::Kernels;
use layers::{Strategy, StrategyInfo};
use std::sync::LazyLock;

macro_rules! families {
    ($($family:ident),*) => {
        /// Returns the descriptions of all strategies of all families, the axis whose ranks communicate most
        /// first.
        pub fn all() -> &'static [&'static StrategyInfo] {
            static ALL: LazyLock<Vec<&StrategyInfo>> = LazyLock::new(|| [$($family::abouts()),*].concat());
            &ALL
        }
        /// Returns the strategies of all families that build layers, on a device.
        pub(crate) fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            [$($family::on()),*].concat()
        }
    };
}
families! { tensor, moe, dealing, attention, data, offload, pipeline }
