//! A step's microbatches as a data rank is dealt them: what goes into the model, what is wanted of it, and what came of it.
use super::{Ending, Report};
use crate::stages::Work;
use crate::{Batch, Result, Sequence, Share};
use comm::{Request, Span};
use kernels::Kernels;
use layers::ops::Partial;
use layers::{Cx, Design, Input, Output, Param, Pass, Record, Targets, Uses, Wanted};
use std::rc::Rc;
use tensor::{Category, Device, Ids, Index, Scalar, Tensor};

/// The contexts of the microbatches in flight.
pub(super) struct Flight<D: Kernels> {
    cxs: Vec<Option<Cx<D>>>, // by microbatch
    spare: Vec<Cx<D>>,       // of microbatches that are back: the next one's is made in the memory of one
}

impl<D: Kernels> Default for Flight<D> {
    fn default() -> Self {
        Self { cxs: Vec::new(), spare: Vec::new() }
    }
}

/// Of every row of logits, where the largest is.
pub(super) type Largest<D> = fn(&Tensor<D>) -> Index<<D as Device>::Place>;

/// What came of the microbatches on this rank.
pub(super) struct Sums<D: Kernels> {
    pub(super) loss: Option<Partial<D::Wide>>,
    pub(super) right: usize,
    pub(super) total: Option<(Request<D::Wide>, Span)>, // of the loss, while its sum is under way
    pub(super) report: Option<Report<D>>,
}

/// A step's microbatches as this data rank is dealt them.
pub(super) struct Dealt<'a, D: Kernels> {
    pub(super) device: &'a D,
    pub(super) batch: &'a Batch,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) design: Rc<Design>,
    pub(super) pass: Pass,
    pub(super) record: Option<&'a Record<D>>,
    pub(super) flight: &'a mut Flight<D>,
    pub(super) largest: Option<Largest<D>>,
    pub(super) sums: Sums<D>,
    pub(super) done: &'a dyn Fn(usize),
    pub(super) ending: &'a mut Ending<D>,
    pub(super) lr: f64,
}

impl<'a, D: Kernels> Dealt<'a, D> {
    fn share(&self, microbatch: usize) -> Result<Share<'a>> {
        self.batch.share(microbatch, self.rank, self.ranks)
    }
}

impl<D: Kernels> Work<D> for Dealt<'_, D> {
    fn cx(&mut self, microbatch: usize) -> Result<&Cx<D>> {
        if self.flight.cxs.len() <= microbatch {
            self.flight.cxs.resize_with(microbatch + 1, || None);
        }
        if self.flight.cxs[microbatch].is_none() {
            let share = self.share(microbatch)?;
            let spare = self.flight.spare.pop().unwrap_or_default();
            let cx = spare.then(Pass { microbatch, ..self.pass }, share.lengths()).numbered_from(share.first);
            let cx = cx.profiled(self.device).recorded(self.record.filter(|_| self.pass.learns).cloned());
            self.flight.cxs[microbatch] = Some(cx);
        }
        Ok(self.flight.cxs[microbatch].as_ref().expect("just made"))
    }
    fn input(&mut self, microbatch: usize) -> Result<Input<D>> {
        let sequences = self.share(microbatch)?.sequences;
        if let Some(width) = self.design.features() {
            return Ok(Input::Rows(features(self.device, width, sequences)));
        }
        let ids = sequences.iter().flat_map(|s| &s.ids);
        Ok(Input::Tokens(Ids::new(self.device.place(), ids, self.design.outputs())?))
    }
    fn wanted(&mut self, microbatch: usize) -> Result<Wanted<D>> {
        let (sequences, outputs) = (self.share(microbatch)?.sequences, self.design.outputs());
        if self.largest.is_some() {
            return Ok(Wanted::Logits { all: true });
        }
        if self.design.gives_rows() {
            return Ok(Wanted::Loss(Targets::Rows(rows(self.device, outputs, sequences, |s| &s.y))));
        }
        let targets = sequences.iter().flat_map(|s| &s.targets);
        Ok(Wanted::Loss(Targets::Ids(Ids::targets(self.device.place(), targets, outputs)?)))
    }
    fn ended(&mut self, microbatch: usize, output: Output<D>) {
        let (share, sums) = (self.share(microbatch), &mut self.sums);
        match (output, self.largest) {
            (Output::Loss(part), _) => {
                sums.loss = Some(match sums.loss.take() {
                    None => part,
                    Some(before) => before + &part,
                });
            }
            (Output::Logits(logits), Some(largest)) => {
                let (mut seen, share) = (Vec::new(), share.expect("it was dealt before"));
                let targets = share.sequences.iter().flat_map(|s| &s.targets);
                if largest(&logits).read_into(&mut seen) {
                    sums.right += seen.iter().zip(targets).filter(|(seen, target)| seen == target).count();
                }
            }
            _ => unreachable!("what is wanted is given"),
        }
    }
    fn done(&mut self, microbatch: usize) {
        let cx = self.flight.cxs[microbatch].take().expect("it is in flight");
        self.flight.spare.push(cx.recorded(None));
        (self.done)(microbatch + 1);
    }
    fn complete(&mut self) -> Result<()> {
        if self.sums.total.is_none() {
            let span = self.ending.mesh.span("sync gradients");
            self.sums.total = Some((self.ending.total(self.device, self.sums.loss.take())?, span));
        }
        Ok(())
    }
    /// The loss is waited for last: while links still carry sums, those that have come are added up.
    fn update(&mut self, uses: &mut dyn Uses<D>, params: &mut [&mut Param<D>]) -> Result<()> {
        let (loss, span) = self.sums.total.take().expect("all chunks are complete");
        let loss = loss.wait()?;
        drop(span);
        let Ending { mesh, optimizer, .. } = &mut *self.ending;
        let _span = mesh.span("optimizer");
        let norm2 = optimizer.step(params, mesh, self.lr)?;
        uses.share(params)?;
        self.sums.report = Some(Report { loss, norm2 });
        Ok(())
    }
}

/// What these sequences are in a model whose tokens are rows of so many features.
pub fn features<D: Kernels>(device: &D, width: usize, sequences: &[Sequence]) -> Tensor<D> {
    rows(device, width, sequences, |s| &s.x)
}

/// The features of these sequences, a row of so many for each token.
fn rows<D: Kernels>(device: &D, width: usize, all: &[Sequence], of: fn(&Sequence) -> &Vec<f32>) -> Tensor<D> {
    let tokens = all.iter().map(Sequence::tokens).sum();
    let mut numbers = all.iter().flat_map(of);
    let next = |_| D::Elem::from_f64(f64::from(*numbers.next().expect("a row for each token")));
    Tensor::from_fn(device, Category::Activations, tokens, width, next)
}
