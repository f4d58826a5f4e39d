//! Where a model is built.
use crate::pipeline::Pipeline;
use kernels::Kernels;
use layers::{Builder, Strategy};
use std::ops::Deref;

/// Where a model is built: the place of its layers, and the schedule of its stages.
pub struct At<'a, D: Kernels> {
    /// Where layers are built.
    pub builder: Builder<'a, D>,
    /// Who goes through which chunk when.
    pub pipeline: Pipeline,
}

impl<'a, D: Kernels> At<'a, D> {
    /// The same schedule, where these strategies, too, build what they build.
    #[must_use]
    pub fn with(self, strategies: impl IntoIterator<Item = &'a dyn Strategy<D>>) -> Self {
        Self { builder: self.builder.with(strategies), ..self }
    }
}

impl<'a, D: Kernels> Deref for At<'a, D> {
    type Target = Builder<'a, D>;
    fn deref(&self) -> &Builder<'a, D> {
        &self.builder
    }
}

impl<'a, D: Kernels> From<Builder<'a, D>> for At<'a, D> {
    /// A model that is not split into stages.
    fn from(builder: Builder<'a, D>) -> Self {
        Self { builder, pipeline: Pipeline::ALONE }
    }
}
