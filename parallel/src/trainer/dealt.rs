//! A step's microbatches on a data rank: the model's inputs, the outputs wanted of it, and the results.
use super::running::Report;
use super::share::rows;
use super::state::StepState;
use crate::data::classic;
use crate::stages::{Feed, ModelOutput, Stages};
use crate::step::Task;
use crate::{Batch, LocalBatch, Result, Sequence};
use comm::{Request, TraceSpan};
use kernels::Kernels;
use layers::{Design, Input, StageRequest, Targets};
use ops::optimizer::loss_scale::unscale;
use ops::{LayerCounts, Partial, Pass, PassContext, TokenShards};
use std::ops::Range;
use std::rc::Rc;
use tensor::{Device, Index, Tensor, TokenIds};

/// Function that returns the index of the largest logit of every row.
pub(super) type Largest<D> = fn(&Tensor<D>) -> Index<<D as Device>::Place>;

/// Sums over the microbatches of this rank.
pub(super) struct MicrobatchSums<D: Kernels> {
    pub(super) loss: Option<Partial<D::Wide>>,
    pub(super) right: usize,
    pub(super) total: Option<(Request<D::Wide>, TraceSpan)>, // of the loss, while its all-reduce is under way
    pub(super) report: Option<Report<D>>,
    pub(super) counts: LayerCounts, // of finished microbatches
}

impl<D: Kernels> Default for MicrobatchSums<D> {
    fn default() -> Self {
        Self { loss: None, right: 0, total: None, report: None, counts: LayerCounts::default() }
    }
}

/// A batch, and how a model of this design and its schedule cut it.
pub(super) struct BatchCut<'a> {
    pub(super) batch: &'a Batch,
    pub(super) design: Rc<Design>,
    pub(super) tokens: TokenShards,
    pub(super) slices: usize, // of each microbatch
    pub(super) each: bool,    // true if each microbatch is an update
}

/// A step's microbatches on this data rank.
pub(super) struct Dealt<'a, D: Kernels> {
    pub(super) rank: &'a mut StepState<D>,
    pub(super) cut: BatchCut<'a>,
    pub(super) pass: Pass,
    pub(super) lr: f64,
    pub(super) largest: Option<Largest<D>>,
    pub(super) sums: MicrobatchSums<D>,
}

impl<'a, D: Kernels> Dealt<'a, D> {
    /// Index in its batch of a microbatch in flight, which is numbered over several steps.
    fn index(&self, of: Task) -> usize {
        of.microbatch as usize % self.cut.batch.microbatches().len()
    }
    fn share(&self, of: Task) -> Result<LocalBatch<'a>> {
        self.cut.batch.share(self.index(of), &self.cut.tokens)
    }
    /// Returns this rank's tokens of a slice of each of its documents: the sequence, and the range of its
    /// tokens.
    fn slice(
        &self,
        of: Task,
    ) -> Result<impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone + use<'a, D>> {
        Ok(self.share(of)?.slice(of.slice as usize, self.cut.slices, &self.tokens()))
    }
    fn tokens(&self) -> TokenShards {
        if self.largest.is_some() { self.cut.tokens.whole() } else { self.cut.tokens }
    }
    /// Returns the tokens that this rank has before inputs are scattered, and whose loss it computes: its
    /// own; if there is a root, all of the microbatch there, and none on others.
    fn given(
        &self,
        of: Task,
    ) -> Result<impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone + use<'a, D>> {
        let share = self.share(of)?;
        let sequences = match self.rank.root.is_root() {
            None => share.sequences,
            Some(true) => &self.cut.batch.microbatches()[self.index(of)],
            Some(false) => &[],
        };
        Ok(LocalBatch { sequences, ..share }.slice(of.slice as usize, self.cut.slices, &self.tokens()))
    }
    /// Creates the context of a task, reusing a finished context's buffers. Slices of a microbatch share the
    /// keys and values that attention sees.
    fn made(&mut self, of: Task) -> Result<PassContext<D>> {
        let (share, slice) = (self.share(of)?, of.slice as usize);
        let (pass, index) = (Pass { microbatch: of.microbatch as usize, slice, ..self.pass }, self.index(of));
        let spare = self.rank.spare.pop().unwrap_or_default();
        let before = self.rank.cxs.iter().filter(|(at, _)| at.microbatch == of.microbatch);
        let before = before.max_by_key(|(at, _)| at.slice).map(|(_, cx)| cx);
        let lengths = |rank| {
            let sequences = self.cut.batch.part(index, &self.cut.tokens.of_data_rank(rank));
            LocalBatch { sequences, first: 0 }.segments(slice, self.cut.slices).map(|s| s.len)
        };
        let tokens = self.cut.batch.microbatches()[index].iter().map(Sequence::tokens).sum();
        let pass = if self.cut.each {
            self.rank.rates.push_back(self.lr);
            Pass { tokens: [tokens; 2], mean_over: self.cut.batch.mean_over(Some(index), 0), ..pass }
        } else {
            Pass { tokens: [tokens, self.cut.batch.tokens()], ..pass }
        };
        let cx = spare
            .then(pass, [0usize; 0])
            .sharded(self.cut.tokens)
            .dealt(share.segments(slice, self.cut.slices));
        let cx = cx.among((0..self.cut.tokens.data_ranks()).map(lengths));
        let cx = match before {
            _ if self.cut.slices == 1 => cx,
            Some(before) => cx.after(before),
            None => cx.with_slices((0..self.cut.slices).map(|slice| share.segments(slice, self.cut.slices))),
        };
        let record = self.rank.record.as_ref().filter(|_| self.pass.learns).cloned();
        Ok(cx.numbered_from(share.first).profiled(&self.rank.device).recorded(record))
    }
}

impl<D: Kernels> Feed<D> for Dealt<'_, D> {
    fn cx(&mut self, of: Task) -> Result<&PassContext<D>> {
        let index = if let Some(index) = self.rank.position(of) {
            index
        } else {
            let cx = self.made(of)?;
            self.rank.cxs.push((of, cx));
            self.rank.cxs.len() - 1
        };
        Ok(&self.rank.cxs[index].1)
    }
    fn input(&mut self, of: Task) -> Result<Input<D>> {
        self.cx(of)?; // made, if it was not
        let given = self.given(of)?;
        let vocabulary = self.cut.design.outputs();
        let StepState { device, root, cxs, .. } = &*self.rank;
        let cx = &cxs[self.rank.position(of).expect("made above")].1;
        if let Some(width) = self.cut.design.features() {
            let x = rows(device, width, given, |s| &s.x);
            return Ok(Input::Rows(root.scatter(cx, &x)?.unwrap_or(x)));
        }
        let ids = given.flat_map(|(s, tokens)| &s.ids[tokens]);
        if root.is_root().is_none() {
            return Ok(Input::Tokens(TokenIds::new(device.place(), ids, vocabulary)?));
        }
        let ids = classic::scatter_ids((root, device), cx, &ids.copied().collect::<Vec<_>>())?;
        Ok(Input::Tokens(TokenIds::new(device.place(), &ids, vocabulary)?))
    }
    fn wanted(&mut self, of: Task) -> Result<StageRequest<D>> {
        let slice = self.given(of)?;
        let outputs = self.cut.design.outputs();
        if self.largest.is_some() {
            return Ok(StageRequest::Logits { all: true });
        }
        if self.cut.design.gives_rows() {
            return Ok(StageRequest::Loss(Targets::Rows(rows(&self.rank.device, outputs, slice, |s| &s.y))));
        }
        let targets = slice.flat_map(|(s, tokens)| &s.targets[tokens]);
        Ok(StageRequest::Loss(Targets::Ids(TokenIds::targets(self.rank.device.place(), targets, outputs)?)))
    }
}

impl<D: Kernels> Dealt<'_, D> {
    /// Adds what left the model to the sums.
    pub(super) fn add(&mut self, of: Task, output: ModelOutput<D>) -> Result<()> {
        for part in output.losses.into_iter().flatten() {
            self.sums.loss = Some(match self.sums.loss.take() {
                None => part,
                Some(before) => before + &part,
            });
        }
        if let (Some(logits), Some(largest)) = (output.logits, self.largest) {
            let mut seen = Vec::new();
            let targets = self.slice(of)?.flat_map(|(s, tokens)| &s.targets[tokens]);
            if self.cut.tokens.speaks() && largest(&logits).read_into(&mut seen) {
                self.sums.right += seen.iter().zip(targets).filter(|(seen, target)| seen == target).count();
            }
        }
        Ok(())
    }
    /// Changes the weights with the gradients of the step. The loss is waited for last: while links still
    /// carry sums, those that have arrived are added up.
    pub(super) fn update(&mut self, model: &mut Stages<D>) -> Result<()> {
        let (mut params, keeper, hooks) = model.learning();
        let (loss, span) = self.sums.total.take().expect("all chunks are complete");
        let mut loss = loss.wait()?;
        drop(span);
        let StepState { mesh, optimizer, .. } = &mut *self.rank;
        let _span = mesh.span("optimizer");
        let scaling = optimizer.scaling().loss;
        let before = optimizer.steps();
        let norm2 = optimizer.step(&mut params, mesh, self.lr, keeper)?;
        let skipped = optimizer.steps() == before;
        let scale = scaling.map(|scaling| scaling.log2).inspect(|log2| unscale(&mut loss, *log2));
        for hooks in hooks.iter().filter(|_| !skipped) {
            hooks.after_update(&mut params, &self.sums.counts)?;
        }
        self.sums.report = Some(Report { loss, norm2: Some(norm2), scale, skipped });
        Ok(())
    }
}
