//! A layer under proof: its construction, the oracle's answer, its traffic, and its inputs.
use super::lies::ActivationLayout;
use crate::{Builder, Layer};
use comm::{Axis, Mesh, Op};
use kernels::{Kernels, Segment};
use ops::{PassContext, Result, Stretches, TokenShards, ValueSource};
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::{Scalar, mix};

/// A layer under proof.
pub trait Case: Sync {
    /// The layer, on any device.
    type Layer<D: Kernels>: Layer<D, In: ActivationLayout<D>, Out: ActivationLayout<D>> + 'static;
    /// The axis that features are split along.
    const AXIS: Axis = Axis::Tp;
    /// Numbers of ranks along this axis on which the layer is proven.
    const RANKS: &'static [usize] = &[1, 2, 3, 4, 8];
    /// Expert axes, with their sizes: the same ranks are split into these if there are two or more along
    /// [`AXIS`](Self::AXIS).
    const EXPERTS: &'static [(Axis, usize)] = &[];
    /// True if the rows of each rank follow from sizes alone, as they do unless a router chooses. If false,
    /// neither traffic nor price can be predicted, and neither is checked.
    const PREDICTED: bool = true;
    /// Further axes of the case's worlds, with their sizes; each rank along them has its own tokens.
    fn dealers(&self) -> Vec<(Axis, usize)> {
        vec![]
    }
    /// Division of each sequence's tokens over the ranks along the further axes, if contexts must know it:
    /// for layers in which tokens attend to others.
    fn dealing(&self) -> Option<Stretches> {
        None
    }
    /// Returns the tokens of a microbatch, a segment for each sequence, that rank `rank` of `ranks` along the
    /// further axes has. By default [`dealing`](Self::dealing) decides, or each rank has whole sequences, in
    /// order.
    fn deal(&self, tokens: &[Segment], (rank, ranks): (usize, usize)) -> Vec<Segment> {
        if let Some(dealing) = self.dealing() {
            let parts = |t: &Segment| {
                let t = *t;
                let part = move |of: Range<usize>| Segment {
                    row: t.row + of.start,
                    position: t.position + of.start,
                    len: of.len(),
                    ..t
                };
                dealing(t.len, rank, ranks).into_iter().map(part)
            };
            return tokens.iter().flat_map(parts).collect();
        }
        let n = tokens.len();
        tokens[n * rank / ranks..n * (rank + 1) / ranks].to_vec()
    }
    /// Elements that such a rank gives to each operation over the further axes, forward and backward, without
    /// sums of gradients, from the sequences of each microbatch.
    fn traffic_of_dealt(&self, _microbatches: &[Vec<Segment>], _place: (usize, usize)) -> Vec<(Op, usize)> {
        vec![]
    }
    /// Numbers of features of the whole input and of the whole output. For a layer of token ids, the first is
    /// the size of the vocabulary.
    fn features(&self) -> [usize; 2];
    /// Builds the layer on a mesh of these axes.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Self::Layer<D>>;
    /// Returns the unsplit layer's answer for one microbatch.
    fn oracle<S: Scalar>(&self, given: &LayerInput<S>) -> Answer<S>;
    /// Elements that each of `ranks` ranks (two or more) gives to each operation, forward and backward, in
    /// any order, for `tokens` tokens: those of all microbatches of a step. A message is `Send` on one rank
    /// and `Receive` on the other.
    fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)>;
    /// Elements that each rank gives to each operation under sequence parallelism, for `share` tokens of its
    /// own, padding included, summed over all microbatches.
    ///
    /// # Panics
    /// If the layer has no stream.
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        panic!("{share} tokens on each of {ranks} ranks: this case has no sequence parallelism")
    }
    /// Elements that one rank gives to each operation, from the number of tokens of each microbatch. Needed
    /// if they do not follow from the sum of tokens, or differ between ranks, as with padding without
    /// sequence parallelism, or messages. By default `traffic` and `traffic_in_regions`.
    fn traffic_on(
        &self,
        (_rank, ranks): (usize, usize),
        microbatches: &[usize],
        regions: bool,
    ) -> Vec<(Op, usize)> {
        if regions {
            return self.traffic_in_regions(microbatches.iter().map(|n| n.div_ceil(ranks)).sum(), ranks);
        }
        self.traffic(microbatches.iter().sum(), ranks)
    }
    /// Returns true if a row of a parameter gets no gradient although the output depends on it. Such a row
    /// stays constant when the backward is compared with the derivative.
    fn has_no_gradient(&self, _parameter: &str, _row: usize) -> bool {
        false
    }
    /// Elements that each of `ranks` ranks gives to the sums of its gradients, once a step. These are the
    /// gradients of parameters that every rank holds whole and applies to its own tokens only: under sequence
    /// parallelism a gain, or a row layer's bias.
    fn synced(&self, _ranks: usize, _regions: bool) -> usize {
        0
    }
}

/// Seed of dropout in a proof, hashed with the step and the number of a sequence.
pub const SEED: u64 = 17;

/// One microbatch, whole: the layer's input on every rank.
#[derive(Clone, Debug)]
pub struct LayerInput<S> {
    /// Number of the step.
    pub step: usize,
    /// Number of its first sequence in the step.
    pub first: usize,
    /// Number of tokens of each sequence.
    pub lengths: Vec<usize>,
    /// Tokens of this rank, as segments of the whole microbatch.
    pub tokens: Vec<Segment>,
    /// Division of the tokens over ranks, and all tokens, if contexts know the division.
    pub shards: Option<(TokenShards, Vec<Segment>)>,
    /// The input, row-major; unused if the layer takes ids.
    pub x: Vec<S>,
    /// Number of tokens of each sequence's memory.
    pub memory_lengths: Vec<usize>,
    /// The memory, row-major, as wide as the input; used if the layer has two inputs.
    pub memory: Vec<S>,
    /// Token ids, used if the layer takes ids.
    pub ids: Vec<u32>,
    /// The gradient of the output.
    pub dy: Vec<S>,
    /// Whole parameters by name.
    pub weights: BTreeMap<String, Vec<S>>,
}

/// Whole outputs and gradients of one microbatch.
#[derive(Clone, Debug)]
pub struct Answer<S> {
    /// The output.
    pub y: Vec<S>,
    /// The gradient of the input; empty if the layer takes ids.
    pub dx: Vec<S>,
    /// The gradients of the parameters.
    pub gradients: BTreeMap<String, Vec<S>>,
}

impl<S: Scalar> LayerInput<S> {
    /// Draws two microbatches of different sizes, the first with two sequences of different lengths. They
    /// have 13 tokens in all and 11 in the first, which no number of ranks divides.
    pub(super) fn draw([inputs, outputs]: [usize; 2], step: usize) -> Vec<LayerInput<S>> {
        [vec![7, 4], vec![2]]
            .into_iter()
            .enumerate()
            .map(|(microbatch, lengths)| {
                let (mut tokens, first): (usize, usize) = (0, 2 * microbatch);
                let segment = |(i, &len): (usize, &usize)| {
                    tokens += len;
                    Segment { row: tokens - len, len, position: 0, sequence: first + i }
                };
                let segments = lengths.iter().enumerate().map(segment).collect();
                let salt = mix((step * 2 + microbatch) as u64);
                let draw =
                    |salt: u64, n: usize| (0..n as u64).map(|i| S::sample(mix(salt ^ i), 1.0)).collect();
                let memory_lengths: Vec<usize> = lengths.iter().map(|n| n + 1).collect();
                LayerInput {
                    step,
                    first,
                    tokens: segments,
                    shards: None,
                    memory: draw(mix(salt ^ 3), memory_lengths.iter().sum::<usize>() * inputs),
                    memory_lengths,
                    x: draw(mix(salt ^ 1), tokens * inputs),
                    ids: (0..tokens as u64).map(|i| (mix(salt ^ i) % inputs as u64) as u32).collect(),
                    dy: draw(mix(salt ^ 2), tokens * outputs),
                    weights: BTreeMap::new(),
                    lengths,
                }
            })
            .collect()
    }
    pub(super) fn tokens(&self) -> usize {
        self.tokens.iter().map(|t| t.len).sum()
    }
    /// Returns the part of it of a rank that has these tokens.
    pub(super) fn of(
        &self,
        tokens: Vec<Segment>,
        [inputs, outputs]: [usize; 2],
        shards: Option<TokenShards>,
    ) -> Self {
        let shards = shards.map(|shards| (shards, self.tokens.clone()));
        let rows: Vec<_> = tokens.iter().flat_map(|t| t.row..t.row + t.len).collect();
        let cut =
            |x: &[S], width: usize| rows.iter().flat_map(|row| x[row * width..][..width].to_vec()).collect();
        let ids = rows.iter().map(|&row| self.ids[row]).collect();
        Self { x: cut(&self.x, inputs), dy: cut(&self.dy, outputs), ids, tokens, shards, ..self.clone() }
    }
    /// Returns the context of a call on it, with a memory if all tokens are here.
    pub(super) fn cx<D: Kernels>(&self, microbatch: usize) -> PassContext<D> {
        let cx = PassContext::train(microbatch, &self.lengths, 1);
        if let Some((shards, all)) = &self.shards {
            return cx.sharded(*shards).dealt(all.iter().copied()).dropping(SEED, self.step);
        }
        let cx = cx.dealt(self.tokens.iter().copied());
        let cx =
            if self.tokens.len() == self.lengths.len() { cx.with_memory(&self.memory_lengths) } else { cx };
        cx.dropping(SEED, self.step)
    }
}

/// Returns the builder of a case.
pub(super) fn place<'a, D: Kernels<Wide = D>>(
    device: &'a D,
    mesh: &'a Mesh<D::Place>,
    values: &'a dyn ValueSource<D::Elem>,
    regions: bool,
) -> Builder<'a, D> {
    let at = Builder::new(device, mesh, values);
    if regions { at.in_regions() } else { at }
}
