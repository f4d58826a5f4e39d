//! How tokens come to the ranks of their experts, and back: a list, one file each.
//!
//! An exchange has two directions, each the other's transpose, so that backward needs no more: [`Exchange::begin`] takes a row
//! of each token (or of each of its copies) to every expert it is handed to; [`Exchange::back`] adds up, for each token, the rows
//! of its copies.
mod dispatch;

pub use dispatch::{Carried, Dispatch, Exchange, MostRows};

use crate::feed_forward::WithExperts;
use kernels::Kernels;
use layers::{About, Strategy};

macro_rules! exchanges {
    ($($file:ident :: $Exchange:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them. The first is taken where the axis of experts is split and none is named.
        pub static ALL: &[&About] = &[$(&$file::ABOUT),*];

        /// All of them, each as what builds layers of experts on a device.
        pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            vec![$(&WithExperts($file::$Exchange)),*]
        }
    };
}

exchanges! {
    all_to_all::AllToAll,
    all_gather::AllGather,
}
