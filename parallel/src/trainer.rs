//! One training step: microbatches forward and backward, gradients summed over them and over the data ranks,
//! the global norm clipped, the optimizer's step.
//!
//! ```text
//! loss = Σ over microbatches and data ranks of each token's loss ÷ all targets of the step that count
//! ```
//!
//! Parts of unequal size need no weights of their own: a mean of means would be another function. Data ranks
//! hold replicas; each gradient is summed once a step, those of a bucket (head, block, embedding) in one
//! all-reduce over the data axis. It starts as soon as the last microbatch adds nothing more to the bucket's
//! gradients, overlaps with the rest of backward, and is waited for before the optimizer's step. Then the
//! biases by which tokens choose experts are updated, too (`moe/src/balance.rs`).
//!
//! Source: Li et al., "PyTorch distributed", §3, arXiv:2006.15704 (replicas); Huang et al., "GPipe", §2.2,
//! arXiv:1811.06965 (accumulation over microbatches).
mod dealt;
pub(crate) mod running;
mod share;
mod state;

use crate::stages::run::{StageRun, StepEvent};
use crate::stages::{BuildContext, Stages};
use crate::{Batch, Result, bail};
use comm::{Axes, Axis, Mesh, Reduce};
use dealt::{BatchCut, Dealt, Largest, MicrobatchSums};
use kernels::{Kernels, OrderedKernels};
use layers::{Builder, Design};
use ops::{
    GradientScaling, LayerCounts, Optimizer, Pass, Record, RootExchange, SGD, UpdateRule, Wide, top_k,
};
use running::{Report, RunningStep, STEP};
pub use share::features;
use state::StepState;
use std::collections::VecDeque;
use tensor::{Category, Real, Scalar, Tensor};

/// A model with its optimizer, on this rank.
pub struct Trainer<D: Kernels> {
    model: Stages<D>,
    rank: StepState<D>,
    seed: u64,
}

impl<D: Kernels> Trainer<D> {
    /// Builds this rank's part of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the design, or its initial values are missing.
    pub fn new(
        at: &BuildContext<D>,
        design: impl Into<Design>,
        (rule, scaling): (impl UpdateRule<D> + 'static, impl Into<GradientScaling>),
    ) -> Result<Self> {
        let builder = Builder { states: rule.states(), ..at.learning() };
        let design = design.into();
        if rule.matrices().is_some() && design.shape().is_none() {
            bail!("{} is for models with matrices of blocks; a classifier has none", rule.name());
        }
        Self::of(&BuildContext { builder, pipeline: at.pipeline }, design, Optimizer::new(rule, scaling))
    }
    /// Builds this rank's part of a model that is only evaluated: its parameters have no masters.
    ///
    /// # Errors
    /// If the ranks do not fit the design, or its initial values are missing.
    pub fn evaluator(at: &BuildContext<D>, design: impl Into<Design>) -> Result<Self> {
        Self::of(at, design, Optimizer::new(SGD, None))
    }
    fn of(at: &BuildContext<D>, design: impl Into<Design>, optimizer: Optimizer<D>) -> Result<Self> {
        let GradientScaling { clip, loss } = optimizer.scaling();
        let rank = StepState {
            device: at.device.clone(),
            mesh: at.mesh.clone(),
            loss: at.mesh.over(Axes::LOSS)?.named("loss"),
            root: RootExchange::new(at.rests, at.mesh, "inputs"),
            optimizer,
            record: None,
            cxs: Vec::new(),
            spare: Vec::new(),
            counts: LayerCounts::default(),
            rates: VecDeque::new(),
            begun: None,
        };
        let schedule = at.pipeline.schedule;
        let name = schedule.about().name;
        if schedule.updates_each() && clip.is_some() && at.mesh.group(Axis::Pp).size() > 1 {
            bail!(
                "{name} updates each stage by itself, so there is no global norm to clip; leave the limit out"
            );
        }
        if schedule.updates_each() && loss.is_some() {
            bail!(
                "{name} updates each stage by itself, so loss scaling cannot skip a step on all stages; use \
                 another schedule, or a dtype of a larger range than f16"
            );
        }
        Ok(Self { model: Stages::new(at, design)?, rank, seed: 0 })
    }
    /// The same model, with dropout drawn from this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
    /// Records the inputs and outputs of layers in `record` from now on; `None` stops recording.
    pub fn record(&mut self, record: Option<Record<D>>) {
        self.rank.record = record;
    }
    /// Runs one training step on a batch, to its end. Every rank is given the whole batch.
    ///
    /// # Errors
    /// If the batch cannot be dealt over the ranks, an id is outside the vocabulary, or a collective fails.
    pub fn step(&mut self, batch: &Batch, lr: f64) -> Result<Report<D>> {
        let running = self.start_step(batch, lr)?;
        self.drain()?;
        running.wait()
    }
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
        Ok(match sums.report {
            Some(report) => report.into(),
            None => RunningStep::losses(self.rank.total(sums.loss)?, batch.microbatches().len()),
        })
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
        let Some(run) = self.model.empty() else { return Ok(()) };
        let span = self.rank.mesh.span("drain");
        self.finish(run, &Batch::NONE, (Pass::default(), 0.0), &|_| (), None)?;
        drop(span);
        Ok(())
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
    /// Returns the mean loss of a batch, in nats, without learning from it; the same on every rank. Calls
    /// `done` after each microbatch with the number of those that are finished.
    ///
    /// # Errors
    /// If the batch cannot be dealt over the ranks, an id is outside the vocabulary, or a collective fails.
    pub fn evaluate(&mut self, batch: &Batch, done: &dyn Fn(usize)) -> Result<Tensor<D::Wide>> {
        self.drain()?;
        let _span = self.rank.mesh.span("evaluate");
        let loss = self.through(batch, (Pass::default(), 0.0), done, None)?.loss;
        Ok(self.rank.total(loss)?.wait()?)
    }
    /// Counts the tokens of a batch whose target has the largest logit, the same on every rank; of equal
    /// logits the first counts. Calls `done` after each microbatch with the number of those that are
    /// finished.
    ///
    /// # Errors
    /// If the batch cannot be dealt over the ranks, a target is not an id of the model, or a collective
    /// fails.
    pub fn correct(&mut self, batch: &Batch, done: &dyn Fn(usize)) -> Result<usize>
    where
        D: OrderedKernels,
        Wide<D>: Real,
    {
        self.drain()?;
        let _span = self.rank.mesh.span("evaluate");
        let right =
            self.through(batch, (Pass::default(), 0.0), done, Some(|logits| top_k(logits, 1).1))?.right;
        let right = Wide::<D>::from_usize(right);
        let mut sum = Tensor::from_fn(self.rank.device.wide(), Category::Buffers, 1, 1, |_| right);
        self.rank.loss.named("correct").all_reduce(&mut sum, Reduce::Sum)?;
        Ok(sum.read().map_or(0, |sum| sum[0].to_f64() as usize))
    }
    /// Runs all microbatches through the model, for their loss or, if `largest` is given, for the number of
    /// correct tokens. If the pass learns, weights change.
    fn through(
        &mut self,
        batch: &Batch,
        (pass, lr): (Pass, f64),
        done: &dyn Fn(usize),
        largest: Option<Largest<D>>,
    ) -> Result<MicrobatchSums<D>> {
        let design = self.model.design();
        let rows_out = if design.gives_rows() { design.outputs() } else { 0 };
        batch.has_features([design.features().unwrap_or(0), rows_out])?;
        let scale = self.rank.optimizer.scaling().loss.filter(|_| pass.learns);
        let pass = Pass { mean_over: batch.mean_over(None, scale.map_or(0, |scale| scale.log2)), ..pass };
        let run = self.model.begin(batch.microbatches().len(), pass.learns)?;
        self.finish(run, batch, (pass, lr), done, largest)
    }
    /// Runs a step to its end; microbatches of this batch enter.
    fn finish(
        &mut self,
        mut run: StageRun,
        batch: &Batch,
        (pass, lr): (Pass, f64),
        done: &dyn Fn(usize),
        largest: Option<Largest<D>>,
    ) -> Result<MicrobatchSums<D>> {
        let Self { model, rank, .. } = self;
        let each = pass.learns && model.updates_each();
        let slices = model.slices(pass.learns);
        let cut = BatchCut { batch, design: model.design().clone(), tokens: model.tokens(), slices, each };
        let mut dealt = Dealt { rank, cut, pass, lr, largest, sums: MicrobatchSums::default() };
        while let Some(event) = model.next(&mut run, &mut dealt)? {
            match event {
                StepEvent::Output(of, output) => dealt.add(of, output)?,
                StepEvent::Done(of) => {
                    dealt.sums.counts.join(dealt.rank.release(of.microbatch));
                    done(of.microbatch as usize + 1);
                }
                StepEvent::UpdateEach(of, span) => {
                    dealt.rank.update_each(of, model)?;
                    drop(span);
                }
                StepEvent::Complete => {
                    let span = dealt.rank.mesh.span("sync gradients");
                    dealt.sums.total = Some((dealt.rank.total(dealt.sums.loss.take())?, span));
                    let (mut params, keeper, _) = model.learning();
                    keeper.finish(&mut params)?;
                }
                StepEvent::Update => dealt.update(model)?,
            }
        }
        let Dealt { rank, mut sums, .. } = dealt;
        rank.counts.join(std::mem::take(&mut sums.counts));
        Ok(sums)
    }
    /// Takes the counts of this rank's layers since the last call, such as how many tokens chose each expert.
    /// Other ranks have other tokens or other blocks; the sum over all ranks is the model's.
    pub fn take_counts(&mut self) -> LayerCounts {
        std::mem::take(&mut self.rank.counts)
    }
    /// The model.
    ///
    /// # Panics
    /// If steps are running; call [`drain`](Self::drain) first.
    pub fn model(&mut self) -> &mut Stages<D> {
        assert_eq!(self.model.in_flight(), 0, "microbatches are in flight");
        &mut self.model
    }
    /// Stages, optimizer and mesh, for saving and restoring.
    ///
    /// # Panics
    /// If steps are running; call [`drain`](Self::drain) first.
    pub fn parts(&mut self) -> (&mut Stages<D>, &mut Optimizer<D>, &Mesh<D::Place>) {
        assert_eq!(self.model.in_flight(), 0, "microbatches are in flight");
        (&mut self.model, &mut self.rank.optimizer, &self.rank.mesh)
    }
}

#[cfg(test)]
mod tests;
