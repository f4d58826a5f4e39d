//! A strategy's work outside layers: a row that passes through the whole model beside the stream, work after
//! an update of weights, and cells of a schedule that it runs in its own way.
use super::stage::{Half, Input, Output, StageRequest};
use kernels::Kernels;
use ops::{LayerCounts, Param, PassContext, Result, Stream};
use tensor::Tensor;

/// A pass of one microbatch through a chunk of a model.
pub enum RunPass<D: Kernels> {
    /// Forward from an input; at the model's end, for this request.
    Forward(Input<D>, Option<StageRequest<D>>),
    /// Backward from the gradient of the next chunk, or from a loss (`None`); `true` if nothing more is added
    /// to the chunk's gradients in this step.
    Backward(Option<Stream<D>>, Half, bool),
    /// The weight half of a backward; `true` as there.
    Weight(bool),
}

/// A cell of a schedule that is to be run.
pub struct CellRun<'a, D: Kernels> {
    /// Name of its kind: "forward".
    pub kind: &'static str,
    /// Number of its chunk in the model.
    pub chunk: usize,
    /// Context of its microbatch.
    pub cx: &'a PassContext<D>,
    /// The pass that it is, if it is one.
    pub pass: Option<RunPass<D>>,
    /// Runs a pass of its microbatch through its chunk. Returns the output of a forward, or dX of a backward,
    /// but for the input of the model.
    pub through: &'a mut dyn FnMut(RunPass<D>) -> Result<Option<Output<D>>>,
    /// Its output, of a forward or a backward: set by whoever runs it.
    pub output: Option<Output<D>>,
}

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
    /// Runs a cell, of a kind of its own or in place of the executor; returns false if it leaves it alone. It
    /// sees the cells of training and of inference.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn run(&self, _: &mut CellRun<D>) -> Result<bool> {
        Ok(false)
    }
    /// Runs after an update of these parameters, all of this rank's, with its layers' counts of the step.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn after_update(&self, _: &mut [&mut Param<D>], _: &LayerCounts) -> Result<()> {
        Ok(())
    }
}
