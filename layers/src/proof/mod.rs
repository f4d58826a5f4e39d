//! The proof of one layer: write a [`Case`] (how it is built, what the oracle says, what it sends), and
//! [`proves`] does the rest, for ranks 1, 2, 3, 4 and 8:
//!
//! 1. **equal** (`equal.rs`): outputs, gradients of inputs and weights, and new weights equal the unsplit oracle bit
//!    for bit in the field, under two keys, over two steps of two ragged microbatches; the traffic is the predicted one;
//! 2. **derived** (`derivative.rs`): the hand-written backward is the exact derivative of the forward, by dual numbers;
//! 3. **close** (`rounding.rs`): in f32 the split layer is as near to the f64 truth as the unsplit one is;
//! 4. **priced** (`price.rs`): `Meta` tells the bytes, FLOPs and traffic that are measured;
//! 5. **sharp** (`mutants.rs`): with any one of the layer's calls to other ranks gone wrong in any way, it is not equal.
mod derivative;
mod equal;
mod erased;
mod lies;
mod mutants;
mod price;
mod rounding;
mod run;

use erased::Erased;
pub use lies::Lies;

use crate::{Builder, Cx, Layer, Result, Values};
use comm::{Mesh, Op};
use kernels::Kernels;
use std::collections::BTreeMap;
use tensor::{Scalar, mix};

/// A layer under proof.
pub trait Case: Sync {
    /// The layer, on any device.
    type Layer<D: Kernels>: Layer<D, In: Lies<D>, Out: Lies<D>> + 'static;
    /// On how many ranks it is proven.
    const RANKS: &'static [usize] = &[1, 2, 3, 4, 8];
    /// Features of the whole input and of the whole output. For a layer of token ids, the first is the vocabulary.
    fn features(&self) -> [usize; 2];
    /// Builds the layer on a mesh of the tensor axis.
    ///
    /// # Errors
    /// Where the ranks do not fit.
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Self::Layer<D>>;
    /// What the unsplit layer gives for one microbatch.
    fn oracle<S: Scalar>(&self, given: &Given<S>) -> Answer<S>;
    /// Elements that each of so many ranks (two or more) gives to an operation, forward and backward, in any order; for
    /// so many tokens, those of all microbatches of a step. A message is `Send` on one rank and `Receive` on the other.
    fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)>;
    /// Elements that each rank gives to an operation under sequence parallelism, for `share` tokens of its own, padding
    /// counted, the sum over all microbatches.
    ///
    /// # Panics
    /// If the layer has no stream.
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        panic!("{share} tokens on each of {ranks} ranks: this case has no sequence parallelism")
    }
    /// Elements that one rank gives to an operation, from the tokens of each microbatch: for what is no function of their
    /// sum, or not the same on all ranks, such as padding without sequence parallelism, or messages. By default
    /// `traffic` and `traffic_in_regions`.
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
    /// Whether a row of a parameter takes no gradient though the output depends on it: as a constant, it does not move where
    /// the backward is held against the derivative.
    fn is_still(&self, _parameter: &str, _row: usize) -> bool {
        false
    }
    /// Elements that each of so many ranks gives to the sums of its gradients, once a step: of what is whole on every
    /// rank and applied to its own tokens alone, as many as it has: under sequence parallelism a gain, or a row layer's
    /// bias.
    fn synced(&self, _ranks: usize, _regions: bool) -> usize {
        0
    }
}

/// What dropout is drawn from in a proof, with the step and the number of a sequence.
pub const SEED: u64 = 17;

/// One microbatch, whole: what the layer is given on every rank.
#[derive(Clone, Debug)]
pub struct Given<S> {
    /// Which step.
    pub step: usize,
    /// The number of its first sequence in the step.
    pub first: usize,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
    /// The input, row-major; unused where ids enter.
    pub x: Vec<S>,
    /// Tokens of each sequence's memory.
    pub memory_lengths: Vec<usize>,
    /// The memory, row-major, as wide as the input; used where there are two inputs.
    pub memory: Vec<S>,
    /// Token ids, used where ids enter.
    pub ids: Vec<u32>,
    /// The gradient of the output.
    pub dy: Vec<S>,
    /// Whole parameters by name.
    pub weights: BTreeMap<String, Vec<S>>,
}

/// What comes of it, whole.
#[derive(Clone, Debug)]
pub struct Answer<S> {
    /// The output.
    pub y: Vec<S>,
    /// The gradient of the input; empty where ids enter.
    pub dx: Vec<S>,
    /// The gradients of the parameters.
    pub gradients: BTreeMap<String, Vec<S>>,
}

impl<S: Scalar> Given<S> {
    /// Two microbatches of different sizes, the first with two sequences of different lengths.
    fn draw([inputs, outputs]: [usize; 2], step: usize) -> Vec<Given<S>> {
        [vec![4, 1], vec![2]]
            .into_iter()
            .enumerate()
            .map(|(microbatch, lengths)| {
                let tokens: usize = lengths.iter().sum();
                let salt = mix((step * 2 + microbatch) as u64);
                let draw =
                    |salt: u64, n: usize| (0..n as u64).map(|i| S::sample(mix(salt ^ i), 1.0)).collect();
                let memory_lengths: Vec<usize> = lengths.iter().map(|n| n + 1).collect();
                Given {
                    step,
                    first: 2 * microbatch,
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
    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }
    /// What a call on it needs.
    fn cx<D: Kernels>(&self, microbatch: usize) -> Cx<D> {
        let cx = Cx::train(microbatch, &self.lengths, 1).numbered_from(self.first);
        cx.with_memory(&self.memory_lengths).dropping(SEED, self.step)
    }
}

/// Proves a layer, all five ways.
///
/// # Panics
/// If the proof fails: says what differs, on which rank of how many, under which key, and in how many elements.
pub fn proves(case: &impl Case) {
    all::<dyn Erased>(case, false);
}

/// Proves a layer, all five ways, under sequence parallelism: each rank has its own tokens of the stream.
///
/// # Panics
/// If the proof fails: says what differs, on which rank of how many, under which key, and in how many elements.
pub fn proves_in_regions(case: &impl Case) {
    all::<dyn Erased>(case, true);
}

/// What becomes of all mutants of a layer, where tensors are compared of whose names this is true.
#[cfg(test)]
pub(crate) fn blind(case: &impl Case, compared: fn(&str) -> bool) -> comm::mutants::Tally {
    mutants::tally::<dyn Erased>((case, false), compared)
}

fn all<C: Erased + ?Sized>(case: &C, regions: bool) {
    equal::check(case, regions);
    derivative::check(case, regions);
    rounding::check(case, regions);
    price::check(case, regions);
    mutants::check(case, regions);
}

/// A place to build a case at.
fn place<'a, D: Kernels<Wide = D>>(
    device: &'a D,
    mesh: &'a Mesh<D::Place>,
    values: &'a dyn Values<D::Elem>,
    regions: bool,
) -> Builder<'a, D> {
    let at = Builder::new(device, mesh, values);
    if regions { at.in_regions() } else { at }
}
