//! The lists of strategies, a family each. A newcomer is a file in its family's folder and its line in the family's list:
//! layouts can name it, every property test draws it, and the commands and the book's table show it.
//!
//! | family | a file gives | list |
//! |---|---|---|
//! | layers | what is built in place of the usual layers, or around a block ([`Strategy`](layers::Strategy)) | [`tensor`] |
//! | how tokens of a sequence are dealt | which tokens a rank has ([`Dealing`](crate::context::Dealing)) | [`context`] |
//! | the core of attention where they are dealt | what is built in its place ([`Strategy`](layers::Strategy)) | [`context`] |
//! | parameters, by where they rest | three words ([`StateSplit`](crate::data::StateSplit)) | [`data`] |
//! | ways of tokens to their experts | dispatch and combine ([`Exchange`](moe::Exchange)) | [`moe::exchange`] |
//! | schedules of a pipeline | who goes through what when ([`Schedule`](crate::Schedule)) | [`pipeline`] |
//!
//! Of other families ([`Choice`](layers::Choice) has them all) there is no strategy yet.
use crate::{context, data, pipeline, tensor};
use ::tensor::Cpu;
use layers::About;
use std::sync::LazyLock;

/// Declares the files of a family and the list of what they give, which is of one type.
macro_rules! list {
    ($Of:ty: $($file:ident :: $ITEM:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them; the first is taken where a layout names none.
        pub static ALL: &[&$Of] = &[$(&$file::$ITEM),*];
    };
}
pub(crate) use list;

/// Declares the files of a family and the list of what they build, on any device.
macro_rules! builders {
    ($($file:ident :: $Strategy:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// All of them, what each builds on a device.
        pub fn on<D: kernels::Kernels>() -> Vec<&'static dyn layers::Strategy<D>> {
            vec![$(&$file::$Strategy),*]
        }
    };
}
pub(crate) use builders;

/// The descriptions of all strategies of all families: the axis whose ranks communicate most first.
pub fn all() -> &'static [&'static About] {
    static ALL: LazyLock<Vec<&About>> = LazyLock::new(|| {
        let layers = tensor::on::<Cpu<f32>>().into_iter().map(layers::Strategy::about);
        let experts = [&moe::sliced::ABOUT].into_iter().chain(moe::exchange::ALL.iter().copied());
        let dealings = context::ALL.iter().map(|dealing| &dealing.about);
        let cores = context::on::<Cpu<f32>>().into_iter().map(layers::Strategy::about);
        let states = data::ALL.iter().map(|split| &split.about);
        layers
            .chain(experts)
            .chain(dealings)
            .chain(cores)
            .chain(states)
            .chain(pipeline::ALL.iter().map(|schedule| schedule.about()))
            .collect()
    });
    &ALL
}
