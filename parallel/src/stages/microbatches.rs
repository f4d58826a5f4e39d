//! The microbatches of a step, as the executor requests them.
use crate::Result;
use crate::step::Task;
use kernels::Kernels;
use layers::{Hooks, Input, Output, Param, ParamHooks, PassContext, StageRequest};

/// The microbatches of a step, as the executor requests them.
pub(crate) trait Microbatches<D: Kernels> {
    /// Returns the context of a slice of a microbatch, created on first use.
    fn cx(&mut self, of: Task) -> Result<&PassContext<D>>;
    /// Returns the input of the model.
    fn input(&mut self, of: Task) -> Result<Input<D>>;
    /// Returns the kind of output wanted at the model's end.
    fn wanted(&mut self, of: Task) -> Result<StageRequest<D>>;
    /// Receives the output of the model.
    fn ended(&mut self, of: Task, output: Output<D>);
    /// Changes the weights with the gradient of one microbatch.
    fn update_each(
        &mut self,
        _: Task,
        _: &[Box<dyn Hooks<D>>],
        _: &mut dyn ParamHooks<D>,
        _: &mut [&mut Param<D>],
    ) -> Result<()> {
        Ok(())
    }
    /// Called when this rank has finished a microbatch.
    fn done(&mut self, _: usize) {}
    /// Called when all microbatches have run backward, before the sums of their gradients are waited for.
    fn complete(&mut self) -> Result<()> {
        Ok(())
    }
    /// Called when all gradients are summed; changes the weights.
    fn update(
        &mut self,
        _: &[Box<dyn Hooks<D>>],
        _: &mut dyn ParamHooks<D>,
        _: &mut [&mut Param<D>],
    ) -> Result<()> {
        Ok(())
    }
}
