//! Macros that list a family's strategies: each strategy is a file and a line.

/// Declares a family's files and the list of their strategies, which are of one type and build no layers.
macro_rules! list {
    ($Of:ty, $about:expr; $($file:ident :: $ITEM:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All strategies of the family; the first is the default of a layout that names none.
        pub static ALL: &[&$Of] = &[$(&$file::$ITEM),*];

        pub(crate) fn abouts() -> Vec<&'static layers::StrategyInfo> {
            let about: fn(&'static $Of) -> &'static layers::StrategyInfo = $about;
            ALL.iter().copied().map(about).collect()
        }
        pub(crate) fn on<D: kernels::Kernels>() -> Vec<&'static dyn layers::Strategy<D>> {
            Vec::new()
        }
    };
}
pub(crate) use list;

/// Declares a family's files and the list of their strategies, which build layers on any device.
macro_rules! builders {
    ($($file:ident :: $Strategy:ident),* $(,)?) => {
        $(pub mod $file;)*

        pub(crate) fn abouts() -> Vec<&'static layers::StrategyInfo> {
            on::<::tensor::Cpu<f32>>().into_iter().map(layers::Strategy::about).collect()
        }
        pub(crate) fn on<D: kernels::Kernels>() -> Vec<&'static dyn layers::Strategy<D>> {
            vec![$(&$file::$Strategy),*]
        }
    };
}
pub(crate) use builders;
