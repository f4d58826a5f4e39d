//! The list of strategies. A new one is a file here and its line below: layouts can name it, every property test draws
//! it, and the commands and the book's table show it.
use crate::model::strategy::{About, Strategy};
use kernels::Kernels;
use tensor::Cpu;

macro_rules! strategies {
    ($($file:ident :: $Strategy:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them, what is said of each.
        pub fn all() -> Vec<&'static About> {
            vec![$(Strategy::<Cpu<f32>>::about(&$file::$Strategy)),*]
        }

        /// All of them, what each builds on a device; in the same order.
        pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            vec![$(&$file::$Strategy),*]
        }
    };
}

strategies! {
    tensor_parallel::TensorParallel,
    sequence_regions::SequenceRegions,
    data_parallel::DataParallel,
}
