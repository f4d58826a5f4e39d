//! A step's microbatches as a data rank is dealt them: what goes into the model, what is wanted of it, and what came of it.
use super::{Ending, Report};
use crate::stages::Work;
use crate::step::Unit;
use crate::{Batch, Result, Sequence, Share, deal};
use comm::{Request, TraceSpan};
use kernels::{Kernels, Segment};
use layers::ops::Partial;
use layers::{
    Cx, Design, Hooks, Input, LayerCounts, Output, Param, Pass, Record, Targets, TokenShards, Uses, Wanted,
};
use std::ops::Range;
use std::rc::Rc;
use tensor::{Category, Device, Ids, Index, Scalar, Tensor};

/// The contexts of the microbatches in flight.
pub(super) struct Flight<D: Kernels> {
    cxs: Vec<Option<Cx<D>>>,        // by microbatch, and within it by slice
    spare: Vec<Cx<D>>, // of microbatches that are back: the next one's is made in the memory of one
    pub(super) counts: LayerCounts, // of all microbatches so far
}

impl<D: Kernels> Default for Flight<D> {
    fn default() -> Self {
        Self { cxs: Vec::new(), spare: Vec::new(), counts: LayerCounts::default() }
    }
}

/// Of every row of logits, where the largest is.
pub(super) type Largest<D> = fn(&Tensor<D>) -> Index<<D as Device>::Place>;

/// What came of the microbatches on this rank.
pub(super) struct Sums<D: Kernels> {
    pub(super) loss: Option<Partial<D::Wide>>,
    pub(super) right: usize,
    pub(super) total: Option<(Request<D::Wide>, TraceSpan)>, // of the loss, while its sum is under way
    pub(super) report: Option<Report<D>>,
}

/// A step's microbatches as this data rank is dealt them.
pub(super) struct Dealt<'a, D: Kernels> {
    pub(super) device: &'a D,
    pub(super) batch: &'a Batch,
    pub(super) tokens: TokenShards,
    pub(super) design: Rc<Design>,
    pub(super) pass: Pass,
    pub(super) slices: usize,
    pub(super) record: Option<&'a Record<D>>,
    pub(super) flight: &'a mut Flight<D>,
    pub(super) largest: Option<Largest<D>>,
    pub(super) sums: Sums<D>,
    pub(super) counts: LayerCounts, // of microbatches that are back
    pub(super) done: &'a dyn Fn(usize),
    pub(super) ending: &'a mut Ending<D>,
    pub(super) lr: f64,
}

impl<'a> Share<'a> {
    /// Of each document the `slice`th of so many nearly equal slices, and of that this rank's tokens: in which sequence, which
    /// of its tokens.
    pub fn slice(
        self,
        slice: usize,
        slices: usize,
        tokens: &TokenShards,
    ) -> impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone + use<'a> {
        let tokens = *tokens;
        let of = move |s: &'a Sequence| {
            let documents = s.documents.iter().scan(0, move |first, &len| {
                let Range { start, end } = deal(len, slice, slices);
                let part = *first + start..*first + end;
                *first += len;
                Some(part)
            });
            let own = move |part: Range<usize>| {
                let first = part.start;
                tokens.stretches(part.len()).map(move |of| (s, first + of.start..first + of.end))
            };
            documents.flat_map(own)
        };
        self.sequences.iter().flat_map(of)
    }
    /// The same slices, whole, as positions in each document.
    pub fn segments(self, slice: usize, slices: usize) -> impl Iterator<Item = Segment> {
        let lengths = self.sequences.iter().flat_map(|s| s.documents.iter().copied());
        lengths.enumerate().map(move |(sequence, len)| {
            let tokens = deal(len, slice, slices);
            Segment { row: 0, len: tokens.len(), position: tokens.start, sequence }
        })
    }
}

impl<'a, D: Kernels> Dealt<'a, D> {
    fn share(&self, microbatch: usize) -> Result<Share<'a>> {
        self.batch.share(microbatch, &self.tokens)
    }
    /// Of each document of this rank's that slice: in which sequence, which of its tokens.
    fn slice(
        &self,
        of: Unit,
    ) -> Result<impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone + use<'a, D>> {
        let tokens = if self.largest.is_some() { self.tokens.whole() } else { self.tokens };
        Ok(self.share(of.microbatch as usize)?.slice(of.slice as usize, self.slices, &tokens))
    }
    /// The context of a unit, made in the memory of one that is done with. Slices of a microbatch share what attention sees.
    fn made(&mut self, of: Unit) -> Result<Cx<D>> {
        let (share, slice) = (self.share(of.microbatch as usize)?, of.slice as usize);
        let pass = Pass { microbatch: of.microbatch as usize, slice, ..self.pass };
        let first = of.microbatch as usize * self.slices;
        let other = self.flight.cxs[first..first + self.slices].iter().flatten().next();
        let spare = self.flight.spare.pop().unwrap_or_default();
        let lengths = |rank| {
            let sequences = self.batch.part(pass.microbatch, &self.tokens.of_data_rank(rank));
            Share { sequences, first: 0 }.segments(slice, self.slices).map(|s| s.len)
        };
        let own = self.batch.microbatches()[pass.microbatch].iter().map(Sequence::tokens).sum();
        let pass = Pass { tokens: [own, self.batch.tokens()], ..pass };
        let cx = spare.then(pass, [0usize; 0]).sharded(self.tokens).dealt(share.segments(slice, self.slices));
        let cx = cx.among((0..self.tokens.data_ranks()).map(lengths));
        let cx = match other {
            _ if self.slices == 1 => cx,
            Some(other) => cx.after(other),
            None => cx.with_cache(share.lengths().max().unwrap_or(0)),
        };
        let record = self.record.filter(|_| self.pass.learns).cloned();
        Ok(cx.numbered_from(share.first).profiled(self.device).recorded(record))
    }
}

impl<D: Kernels> Work<D> for Dealt<'_, D> {
    fn cx(&mut self, of: Unit) -> Result<&Cx<D>> {
        let at = of.microbatch as usize * self.slices + of.slice as usize;
        if self.flight.cxs.len() < (of.microbatch as usize + 1) * self.slices {
            self.flight.cxs.resize_with((of.microbatch as usize + 1) * self.slices, || None);
        }
        if self.flight.cxs[at].is_none() {
            self.flight.cxs[at] = Some(self.made(of)?);
        }
        Ok(self.flight.cxs[at].as_ref().expect("just made"))
    }
    fn input(&mut self, of: Unit) -> Result<Input<D>> {
        let slice = self.slice(of)?;
        if let Some(width) = self.design.features() {
            return Ok(Input::Rows(rows(self.device, width, slice, |s| &s.x)));
        }
        let ids = slice.flat_map(|(s, tokens)| &s.ids[tokens]);
        Ok(Input::Tokens(Ids::new(self.device.place(), ids, self.design.outputs())?))
    }
    fn wanted(&mut self, of: Unit) -> Result<Wanted<D>> {
        let (slice, outputs) = (self.slice(of)?, self.design.outputs());
        if self.largest.is_some() {
            return Ok(Wanted::Logits { all: true });
        }
        if self.design.gives_rows() {
            return Ok(Wanted::Loss(Targets::Rows(rows(self.device, outputs, slice, |s| &s.y))));
        }
        let targets = slice.flat_map(|(s, tokens)| &s.targets[tokens]);
        Ok(Wanted::Loss(Targets::Ids(Ids::targets(self.device.place(), targets, outputs)?)))
    }
    fn ended(&mut self, of: Unit, output: Output<D>) {
        let (slice, sums) = (self.slice(of), &mut self.sums);
        match (output, self.largest) {
            (Output::Loss(part), _) => {
                sums.loss = Some(match sums.loss.take() {
                    None => part,
                    Some(before) => before + &part,
                });
            }
            (Output::Logits(logits), Some(largest)) => {
                let (mut seen, slice) = (Vec::new(), slice.expect("it was dealt before"));
                let targets = slice.flat_map(|(s, tokens)| &s.targets[tokens]);
                if self.tokens.speaks() && largest(&logits).read_into(&mut seen) {
                    sums.right += seen.iter().zip(targets).filter(|(seen, target)| seen == target).count();
                }
            }
            _ => unreachable!("what is wanted is given"),
        }
    }
    /// A context at rest keeps its lists, and no memory of the device.
    fn done(&mut self, microbatch: usize) {
        let (Flight { cxs, spare, .. }, counts) = (&mut *self.flight, &mut self.counts);
        let done = cxs[microbatch * self.slices..(microbatch + 1) * self.slices].iter_mut().map(Option::take);
        let done = done.map(|cx| cx.expect("it is in flight")).inspect(|cx| counts.join(cx.take_counts()));
        spare.extend(done.map(|cx| cx.then(Pass::default(), [0usize; 0])));
        (self.done)(microbatch + 1);
    }
    fn complete(&mut self) -> Result<()> {
        let span = self.ending.mesh.span("sync gradients");
        self.sums.total = Some((self.ending.total(self.device, self.sums.loss.take())?, span));
        Ok(())
    }
    /// The loss is waited for last: while links still carry sums, those that have come are added up.
    fn update(
        &mut self,
        hooks: &[Box<dyn Hooks<D>>],
        uses: &mut dyn Uses<D>,
        params: &mut [&mut Param<D>],
    ) -> Result<()> {
        let (loss, span) = self.sums.total.take().expect("all chunks are complete");
        let loss = loss.wait()?;
        drop(span);
        let Ending { mesh, optimizer, .. } = &mut *self.ending;
        let _span = mesh.span("optimizer");
        let norm2 = optimizer.step(params, mesh, self.lr, uses)?;
        for hooks in hooks {
            hooks.after_update(params, &self.counts)?;
        }
        uses.share(params)?;
        self.sums.report = Some(Report { loss, norm2 });
        Ok(())
    }
}

/// What a rank has of these sequences in a model whose tokens are rows of so many features.
pub fn features<D: Kernels>(
    device: &D,
    width: usize,
    sequences: &[Sequence],
    tokens: &TokenShards,
) -> Tensor<D> {
    rows(device, width, Share { sequences, first: 0 }.slice(0, 1, tokens), |s| &s.x)
}

/// The features of these tokens of sequences, a row of so many for each token.
fn rows<'a, D: Kernels>(
    device: &D,
    width: usize,
    all: impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone,
    of: fn(&Sequence) -> &Vec<f32>,
) -> Tensor<D> {
    let tokens = all.clone().map(|(_, tokens)| tokens.len()).sum();
    let mut numbers = all.flat_map(|(s, tokens)| &of(s)[tokens.start * width..tokens.end * width]);
    let next = |_| D::Elem::from_f64(f64::from(*numbers.next().expect("a row for each token")));
    Tensor::from_fn(device, Category::Activations, tokens, width, next)
}
