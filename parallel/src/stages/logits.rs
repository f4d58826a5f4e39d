//! One forward of a batch through the model, for its logits.
use super::run::StepEvent;
use super::{Feed, Stages};
use crate::Result;
use crate::step::Task;
use kernels::Kernels;
use layers::{Input, StageRequest};
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
        let mut once = Once { cx, input: Some(input.into()), all };
        let mut run = self.begin(1, false)?;
        let mut logits = None;
        while let Some(event) = self.next(&mut run, &mut once)? {
            if let StepEvent::Output(_, output) = event {
                logits = output.logits;
            }
        }
        let open = cx.parts().iter().filter(|part| part.len > 0).count();
        let rows = if all { cx.rows_of_parts() } else { open };
        let empty = || Tensor::empty(&self.device, Category::Activations, rows, self.design.outputs());
        let mut logits = logits.unwrap_or_else(empty);
        self.logits.broadcast(&mut logits, self.last_stage())?;
        Ok(logits)
    }
}

/// One microbatch, for its logits.
pub(super) struct Once<'a, D: Kernels> {
    pub(super) cx: &'a PassContext<D>,
    pub(super) input: Option<Input<D>>,
    pub(super) all: bool,
}

impl<D: Kernels> Feed<D> for Once<'_, D> {
    fn cx(&mut self, _: Task) -> Result<&PassContext<D>> {
        Ok(self.cx)
    }
    fn input(&mut self, _: Task) -> Result<Input<D>> {
        Ok(self.input.take().expect("one microbatch"))
    }
    fn wanted(&mut self, _: Task) -> Result<StageRequest<D>> {
        Ok(StageRequest::Logits { all: self.all })
    }
}
