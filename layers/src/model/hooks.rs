//! Work of a strategy between the passes of layers: a row that goes through the whole model beside the stream, and what
//! follows an update of weights.
use crate::{Cx, LayerCounts, Param, Result};
use kernels::Kernels;
use tensor::Tensor;

/// Work of a strategy in training, besides the layers that it builds. A method that is left out does nothing.
pub trait Hooks<D: Kernels> {
    /// Elements of a row that goes [beside the stream](Cx::beside): zeros where a microbatch enters the model; blocks add to it; it
    /// goes with activations from stage to stage, and what the end makes of it goes back with the gradients. A model has at most one.
    fn row(&self) -> Option<usize> {
        None
    }
    /// The row that goes back, of the one that has come through all blocks.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn turn(&self, _: &Cx<D>, row: Tensor<D::Wide>) -> Result<Tensor<D::Wide>> {
        Ok(row)
    }
    /// After an update of these parameters, all of this rank's, in a step in which its layers counted this.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn after_update(&self, _: &mut [&mut Param<D>], _: &LayerCounts) -> Result<()> {
        Ok(())
    }
}
