//! Token dispatchers: how tokens reach the ranks of their experts, and return. A list, with one file each.
//!
//! A token dispatcher has two directions, each the transpose of the other, so backward needs no more.
//! [`TokenDispatcher::begin`](crate::TokenDispatcher::begin) sends a row of each token (or of each of its
//! copies) to every expert that takes it; [`TokenDispatcher::back`](crate::TokenDispatcher::back) adds up,
//! for each token, the rows of its copies.
use crate::feed_forward::WithExperts;
use kernels::Kernels;
use layers::{Strategy, StrategyInfo};

macro_rules! exchanges {
    ($($file:ident :: $TokenDispatcher:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All dispatchers. The first is used if the axis of experts is split and no dispatcher is named.
        pub static ALL: &[&StrategyInfo] = &[$(&$file::ABOUT),*];

        /// All dispatchers, each as the strategy that builds layers of experts on a device.
        pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            vec![$(&WithExperts($file::$TokenDispatcher)),*]
        }
    };
}

exchanges! {
    all_to_all::AllToAll,
    all_gather::AllGather,
}
