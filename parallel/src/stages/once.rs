//! One forward of a batch through the model, for its logits.
use super::{Microbatches, Stages};
use crate::Result;
use crate::step::Task;
use kernels::Kernels;
use layers::{Input, Output, StageRequest};
use ops::PassContext;
use tensor::{Category, Tensor};

impl<D: Kernels> Stages<D> {
    /// Returns the logits `[sequences, V]` of the last token of every sequence that has tokens; with `all`,
    /// those of every token `[B, V]`, also of other context ranks' tokens. A model that outputs rows of
    /// features returns those rows. All ranks but data ranks have the same result.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn logits(
        &mut self,
        cx: &PassContext<D>,
        input: impl Into<Input<D>>,
        all: bool,
    ) -> Result<Tensor<D>> {
        let mut once = Once { cx, input: Some(input.into()), all, logits: None };
        let mut keeper = self.keeper.take().expect("put back below");
        let outcome = self.run(1, false, &mut once, &mut keeper);
        self.keeper = Some(keeper);
        outcome?;
        let open = cx.parts().iter().filter(|part| part.len > 0).count();
        let rows = if all { cx.rows_of_parts() } else { open };
        let empty = || Tensor::empty(&self.device, Category::Activations, rows, self.design.outputs());
        let mut logits = once.logits.unwrap_or_else(empty);
        self.logits.broadcast(&mut logits, self.last_stage())?;
        Ok(logits)
    }
}

/// Work of one call for logits.
pub(super) struct Once<'a, D: Kernels> {
    pub(super) cx: &'a PassContext<D>,
    pub(super) input: Option<Input<D>>,
    pub(super) all: bool,
    pub(super) logits: Option<Tensor<D>>,
}

impl<D: Kernels> Microbatches<D> for Once<'_, D> {
    fn cx(&mut self, _: Task) -> Result<&PassContext<D>> {
        Ok(self.cx)
    }
    fn input(&mut self, _: Task) -> Result<Input<D>> {
        Ok(self.input.take().expect("one microbatch"))
    }
    fn wanted(&mut self, _: Task) -> Result<StageRequest<D>> {
        Ok(StageRequest::Logits { all: self.all })
    }
    fn ended(&mut self, _: Task, output: Output<D>) {
        let Output::Logits(logits) = output else { unreachable!("logits are wanted") };
        self.logits = Some(logits);
    }
}
