//! How a family lists its strategies: each is a file, and a line.

/// Declares the files of a family and the list of what they give, which is of one type, and builds nothing.
macro_rules! list {
    ($Of:ty, $about:expr; $($file:ident :: $ITEM:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them; the first is taken where a layout names none.
        pub static ALL: &[&$Of] = &[$(&$file::$ITEM),*];

        pub(crate) fn abouts() -> Vec<&'static layers::About> {
            let about: fn(&'static $Of) -> &'static layers::About = $about;
            ALL.iter().copied().map(about).collect()
        }
        pub(crate) fn on<D: kernels::Kernels>() -> Vec<&'static dyn layers::Strategy<D>> {
            Vec::new()
        }
    };
}
pub(crate) use list;

/// Declares the files of a family and the list of what they build, on any device.
macro_rules! builders {
    ($($file:ident :: $Strategy:ident),* $(,)?) => {
        $(pub mod $file;)*

        pub(crate) fn abouts() -> Vec<&'static layers::About> {
            on::<::tensor::Cpu<f32>>().into_iter().map(layers::Strategy::about).collect()
        }
        pub(crate) fn on<D: kernels::Kernels>() -> Vec<&'static dyn layers::Strategy<D>> {
            vec![$(&$file::$Strategy),*]
        }
    };
}
pub(crate) use builders;
