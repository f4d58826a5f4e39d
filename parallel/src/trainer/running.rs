//! Steps that overlap: under a schedule that keeps the pipeline full, the next step begins before the last
//! microbatches of this one have run backward. Each microbatch is an update of its own.
use super::{Report, StepState, Trainer};
use crate::stages::Microbatches;
use crate::step::Task;
use crate::{Batch, Result};
use comm::Request;
use kernels::Kernels;
use layers::{Hooks, Input, Output, StageRequest};
use ops::{Keeper, LayerCounts, Param, Pass, PassContext, Wide, filled, scaled};
use std::ops::Range;
use tensor::{Category, Scalar, Tensor};

/// Prefix of a training step's name in a trace; the step's number follows.
pub const STEP: &str = "step ";

/// A training step that may still be running.
pub struct RunningStep<D: Kernels>(StepLoss<D>);

enum StepLoss<D: Kernels> {
    /// The sum of the mean losses of this number of microbatches is under way.
    Losses(Box<Request<D::Wide>>, usize),
    Done(Report<D>),
}

impl<D: Kernels> RunningStep<D> {
    /// Waits for the loss of the step; if each microbatch is an update, the mean of their losses. Gradients
    /// and updates may still be running.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn wait(self) -> Result<Report<D>> {
        let (losses, microbatches) = match self.0 {
            StepLoss::Losses(losses, microbatches) => (losses, microbatches),
            StepLoss::Done(report) => return Ok(report),
        };
        let sum: Tensor<D::Wide> = losses.wait()?;
        let each = Wide::<D>::from_usize(microbatches).inv();
        let loss = scaled(&sum, &filled(sum.device(), Category::Buffers, [1, 1], each));
        Ok(Report { loss, norm2: None, scale: None, skipped: false })
    }
}

impl<D: Kernels> From<Report<D>> for RunningStep<D> {
    /// The report of a finished step.
    fn from(report: Report<D>) -> Self {
        Self(StepLoss::Done(report))
    }
}

impl<D: Kernels> Trainer<D> {
    /// Starts one training step on a batch. Under most schedules this is the whole step. Under one that keeps
    /// the pipeline full, the last microbatches run backward during the next step, or in
    /// [`drain`](Self::drain).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn start_step(&mut self, batch: &Batch, lr: f64) -> Result<RunningStep<D>> {
        if ![0, batch.microbatches().len()].contains(&self.model.in_flight()) {
            self.drain()?; // the pipeline's table has another number
        }
        let step = self.rank.begun.unwrap_or(self.rank.optimizer.steps());
        let _span = self.rank.mesh.span(format_args!("{STEP}{}", step + 1));
        self.rank.begun = Some(step + 1);
        let pass = Pass { learns: true, keeps: true, seed: self.seed, step, ..Pass::default() };
        let sums = self.through(batch, (pass, lr), &|_| (), None)?;
        Ok(RunningStep(match sums.report {
            Some(report) => StepLoss::Done(report),
            None => StepLoss::Losses(Box::new(self.rank.total(sums.loss)?), batch.microbatches().len()),
        }))
    }
    /// Starts one training step and returns the report of the last one that is over: of this step, or if
    /// steps overlap, of the one before, which was in `running`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn next_step(
        &mut self,
        running: &mut Option<RunningStep<D>>,
        batch: &Batch,
        lr: f64,
    ) -> Result<Option<Report<D>>> {
        let step = self.start_step(batch, lr)?;
        let over = if self.overlaps() { running.replace(step) } else { Some(step) };
        over.map(RunningStep::wait).transpose()
    }
    /// Finishes all steps that have begun, and returns the report of the last one if it was in `running`, as
    /// [`next_step`](Self::next_step) leaves it.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn last_step(&mut self, running: Option<RunningStep<D>>) -> Result<Option<Report<D>>> {
        self.drain()?;
        running.map(RunningStep::wait).transpose()
    }
    /// Number of steps on such batches until the pipeline is full and holds all versions of its weights; 0 if
    /// steps do not overlap.
    pub fn filling(&self, batch: &Batch) -> usize {
        let microbatches = batch.microbatches().len();
        2 * self.model.carries(microbatches).div_ceil(microbatches)
    }
    /// Finishes all steps that have begun. Every rank calls it; does nothing if none is running.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn drain(&mut self) -> Result<()> {
        let Self { model, keeper, rank, .. } = self;
        if model.in_flight() == 0 {
            return Ok(());
        }
        let _span = rank.mesh.span("drain");
        model.empty(&mut Draining { rank }, keeper)
    }
    /// Returns true if a step may still be running when the next one begins.
    pub fn overlaps(&self) -> bool {
        self.model.carries(1) > 0
    }
    /// Number of steps that have begun, those before a restored checkpoint among them.
    pub fn steps(&self) -> usize {
        self.rank.begun.unwrap_or(self.rank.optimizer.steps())
    }
    /// Sets the number of steps so far, if it is not that of the optimizer's updates.
    pub fn set_steps(&mut self, steps: usize) {
        self.rank.begun = Some(steps);
    }
}

/// Microbatches that have run forward, without the batch that they came from.
struct Draining<'a, D: Kernels> {
    rank: &'a mut StepState<D>,
}

impl<D: Kernels> Microbatches<D> for Draining<'_, D> {
    fn cx(&mut self, of: Task) -> Result<&PassContext<D>> {
        Ok(self.rank.cxs[of.microbatch as usize].as_ref().expect("it is in flight"))
    }
    fn input(&mut self, _: Task) -> Result<Input<D>> {
        unreachable!("nothing enters a pipeline that is drained")
    }
    fn wanted(&mut self, _: Task) -> Result<StageRequest<D>> {
        unreachable!("nothing enters a pipeline that is drained")
    }
    fn ended(&mut self, _: Task, _: Output<D>) {
        unreachable!("nothing enters a pipeline that is drained")
    }
    fn update_each(
        &mut self,
        of: Task,
        hooks: &[Box<dyn Hooks<D>>],
        keeper: &mut Keeper<D>,
        params: &mut [&mut Param<D>],
    ) -> Result<()> {
        self.rank.update_each(of, hooks, keeper, params)
    }
    fn done(&mut self, microbatch: usize) {
        let counts = self.rank.release(microbatch..microbatch + 1);
        self.rank.counts.join(counts);
    }
}

impl<D: Kernels> StepState<D> {
    /// Changes the weights with the gradient of a microbatch, at the learning rate of its step.
    pub(super) fn update_each(
        &mut self,
        of: Task,
        hooks: &[Box<dyn Hooks<D>>],
        keeper: &mut Keeper<D>,
        params: &mut [&mut Param<D>],
    ) -> Result<()> {
        let lr = self.rates.pop_front().expect("the microbatch has begun");
        self.optimizer.step_without_norm(params, &self.mesh, lr, keeper)?;
        let counts = self.cxs[of.microbatch as usize].as_ref().expect("it is in flight").take_counts();
        for hooks in hooks {
            hooks.after_update(params, &counts)?;
        }
        self.counts.join(counts);
        Ok(())
    }
    /// Releases finished contexts, and returns the counts of their layers. An idle context keeps its lists,
    /// but no memory of the device.
    pub(super) fn release(&mut self, finished: Range<usize>) -> LayerCounts {
        let mut counts = LayerCounts::default();
        let done = self.cxs[finished].iter_mut().map(|cx| cx.take().expect("it is in flight"));
        let done = done.inspect(|cx| counts.join(cx.take_counts()));
        self.spare.extend(done.map(|cx| cx.then(Pass::default(), [0usize; 0])));
        counts
    }
}
