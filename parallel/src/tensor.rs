//! Strategies that build layers: split inside over the ranks of the axis of layers, or around each block.
use kernels::Kernels;
use layers::Strategy;

macro_rules! layer_splits {
    ($($file:ident :: $Strategy:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them, what each builds on a device.
        pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
            vec![$(&$file::$Strategy),*]
        }
    };
}

layer_splits! {
    tensor_parallel::TensorParallel,
    sequence_parallel::SequenceParallel,
    recompute::Recompute,
}
