//! The lists of strategies, a family each. A newcomer is a file in its family's folder and its line in the family's list:
//! layouts can name it, every property test draws it, and the commands and the book's table show it.
//!
//! | family | a file gives | list |
//! |---|---|---|
//! | layers | what is built in place of the usual layers, or around a block ([`Strategy`]) | [`tensor`] |
//! | ways of tokens to their experts | dispatch and combine ([`Exchange`](moe::Exchange)) | [`moe::exchange`] |
//! | how tokens of a sequence are dealt | which tokens a rank has ([`Dealing`](crate::dealing::Dealing)) | [`dealing`] |
//! | the core of attention where they are dealt | what is built in its place ([`Strategy`]) | [`attention`] |
//! | parameters, by where they rest | three words ([`StateSplit`](crate::data::StateSplit)) | [`data`] |
//! | schedules of a pipeline | who goes through what when ([`Schedule`](crate::Schedule)) | [`pipeline`] |
//!
//! Of other families ([`Choice`](layers::Choice) has them all) there is no strategy yet.
pub(crate) mod lists;

use crate::{attention, data, dealing, pipeline, tensor};
use kernels::Kernels;
use layers::{About, Strategy};
use std::sync::LazyLock;

macro_rules! families {
    ($($family:ident),*) => {
        /// The descriptions of all strategies of all families: the axis whose ranks communicate most first.
        pub fn all() -> &'static [&'static About] {
            static ALL: LazyLock<Vec<&About>> = LazyLock::new(|| [$($family::abouts()),*].concat());
            &ALL
        }
        /// The strategies of all families that build layers, on a device.
        pub(crate) fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            [$($family::on()),*].concat()
        }
    };
}
families! { tensor, moe, dealing, attention, data, pipeline }
