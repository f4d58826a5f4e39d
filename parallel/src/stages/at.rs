//! The context in which a model is built.
use crate::pipeline::Pipeline;
use kernels::Kernels;
use layers::{Builder, Strategy};
use std::ops::Deref;

/// Context in which a model is built: the builder of its layers, and the schedule of its stages.
pub struct BuildContext<'a, D: Kernels> {
    /// Context in which layers are built.
    pub builder: Builder<'a, D>,
    /// Schedule of the stages.
    pub pipeline: Pipeline,
}

impl<'a, D: Kernels> BuildContext<'a, D> {
    /// The same context with these strategies added.
    #[must_use]
    pub fn with(self, strategies: impl IntoIterator<Item = &'a dyn Strategy<D>>) -> Self {
        Self { builder: self.builder.with(strategies), ..self }
    }
}

impl<'a, D: Kernels> Deref for BuildContext<'a, D> {
    type Target = Builder<'a, D>;
    fn deref(&self) -> &Builder<'a, D> {
        &self.builder
    }
}

impl<'a, D: Kernels> From<Builder<'a, D>> for BuildContext<'a, D> {
    /// Context of a model that is not split into stages.
    fn from(builder: Builder<'a, D>) -> Self {
        Self { builder, pipeline: Pipeline::ALONE }
    }
}
