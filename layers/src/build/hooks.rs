//! A strategy's work outside layers: a row that passes through the whole model beside the stream, and work
//! after an update of weights.
use kernels::Kernels;
use ops::{LayerCounts, Param, PassContext, Result};
use tensor::Tensor;

/// A strategy's work in training besides the layers that it builds. By default, every method does nothing.
pub trait Hooks<D: Kernels> {
    /// Number of elements of a row [beside the stream](PassContext::beside). The row is zero when a
    /// microbatch enters the model, and blocks add to it. It travels with activations from stage to stage;
    /// [`turn`](Hooks::turn) maps it at the end, and the result travels back with the gradients. A model has
    /// at most one.
    fn row(&self) -> Option<usize> {
        None
    }
    /// Returns the row that travels back, from the row that passed through all blocks.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn turn(&self, _: &PassContext<D>, row: Tensor<D::Wide>) -> Result<Tensor<D::Wide>> {
        Ok(row)
    }
    /// Runs after an update of these parameters, all of this rank's, with its layers' counts of the step.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn after_update(&self, _: &mut [&mut Param<D>], _: &LayerCounts) -> Result<()> {
        Ok(())
    }
}
