//! Passes that are measured, and what they are given.
use super::scale::Scale;
use parallel::{Batch, Result, Sequence};
use tensor::mix;

/// A pass over the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BenchPass {
    /// All logits; nothing is saved for backward.
    Forward,
    /// A training step of plain gradient descent.
    Step,
    /// A training step of AdamW.
    AdamStep,
    /// The core of attention of one long sequence, forward and backward.
    Attention,
    /// A training step of one block, of plain gradient descent, on one long sequence.
    Block,
    /// The moves of offloaded state in a training step of AdamW, without the step.
    Moves,
}

pub(super) const RATE: f64 = 1e-4;

pub(super) fn ids(scale: &Scale, salt: u64, n: usize) -> Vec<u32> {
    (0..n as u64).map(|i| (mix(mix(salt) ^ i) % scale.shape.vocabulary as u64) as u32).collect()
}

/// A sequence of features, read and learnt.
pub(super) fn features(scale: &Scale, salt: u64, tokens: usize) -> Sequence {
    let numbers = |salt: u64| {
        let number = |i| mix(mix(salt) ^ i) as f32 / u64::MAX as f32 - 0.5;
        (0..(tokens * scale.shape.width) as u64).map(number).collect()
    };
    Sequence::rows(tokens, numbers(2 * salt), numbers(2 * salt + 1))
}

pub(super) fn batch(scale: &Scale) -> Result<Batch> {
    let [sequences, tokens] = scale.batch;
    let sequence = |b: u64| Sequence::new(ids(scale, 2 * b, tokens), ids(scale, 2 * b + 1, tokens));
    Batch::new((0..sequences as u64).map(sequence).collect(), 1)
}

/// Seconds of the best try after the first, which warms up. A try lasts until its last rank has finished;
/// `ranks` has the seconds of each rank's tries.
pub(super) fn least(ranks: &[Vec<f64>]) -> f64 {
    let tries = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let last = |try_: usize| ranks.iter().map(|rank| rank[try_]).fold(0.0, f64::max);
    (1..tries).map(last).fold(f64::INFINITY, f64::min)
}
