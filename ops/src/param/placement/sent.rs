//! Input features of a linear layer that ranks send each other. A weight that leads from a feature which its
//! rank does not send to an output of another rank is always 0.
//!
//! ```text
//! W[I,O] over 2 ranks, each sending 1 of its 2 features:    rank 0's outputs | rank 1's outputs
//!                                   rank 0's features  0    x                | x       sent
//!                                                      1    x                | 0
//!                                   rank 1's features  2    0                | x
//!                                                      3    x                | x       sent
//! ```
//!
//! The mask is the zeros of the weight: a file of weights needs nothing else. A feature's importance is the
//! sum of squares of its weights to other ranks' outputs.
//!
//! Source: Qin et al., "DISCO: distributed inference with sparse communications", §3, arXiv:2302.11180.
use crate::ParamValues;
use std::ops::Range;
use tensor::Scalar;

/// The input features that each rank sends to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFeatures {
    cut: [usize; 2], // inputs and outputs of a rank
    each: usize,     // features that a rank sends
    sent: Vec<bool>, // of every input
}

impl SentFeatures {
    /// Returns the importance of input `row` of a weight `[I,O]` for `ranks` ranks: Σ W² over the outputs of
    /// the other ranks.
    pub fn importance<E: Scalar>(
        values: &ParamValues<E>,
        [inputs, outputs]: [usize; 2],
        ranks: usize,
        row: usize,
    ) -> E {
        let mut weights = vec![E::ZERO; outputs];
        let share = outputs.div_ceil(ranks);
        values.set([row, 0], &mut weights);
        let begin = row / (inputs / ranks) * share;
        let other = weights.iter().enumerate().filter(|(column, _)| !(begin..begin + share).contains(column));
        other.fold(E::ZERO, |sum, (_, w)| sum + *w * *w)
    }
    /// Chooses the `each` most important features of every rank; of equally important ones, the first.
    pub fn choose<E: Scalar>(
        [inputs, outputs]: [usize; 2],
        (ranks, each): (usize, usize),
        importance: impl Fn(usize) -> E,
    ) -> Self {
        let cut = [inputs / ranks, outputs.div_ceil(ranks)];
        let mut sent = vec![false; inputs];
        for rank in 0..ranks {
            let mut features: Vec<_> = (rank * cut[0]..(rank + 1) * cut[0]).collect();
            features.sort_by(|a, b| importance(*b).order(importance(*a)).then(a.cmp(b)));
            features[..each].iter().for_each(|feature| sent[*feature] = true);
        }
        Self { cut, each, sent }
    }
    /// Number of features that a rank has.
    pub fn own(&self) -> usize {
        self.cut[0]
    }
    /// Number of features that a rank sends.
    pub fn each(&self) -> usize {
        self.each
    }
    /// Returns the features that a rank sends, counted among all inputs.
    pub fn of(&self, rank: usize) -> impl Iterator<Item = usize> {
        (rank * self.cut[0]..(rank + 1) * self.cut[0]).filter(|feature| self.sent[*feature])
    }
    /// Returns the weights that are always 0: rows, each with the columns of other ranks' outputs.
    pub fn unreached(&self, columns: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        (0..self.sent.len()).filter(|row| !self.sent[*row]).flat_map(move |row| {
            let begin = row / self.cut[0] * self.cut[1];
            [(row, 0..begin.min(columns)), (row, (begin + self.cut[1]).min(columns)..columns)]
        })
    }
    /// Returns whether a weight may be other than 0: its feature is sent, or its output is on the same rank.
    pub fn reaches(&self, [row, column]: [usize; 2]) -> bool {
        self.sent[row] || row / self.cut[0] == column / self.cut[1]
    }
}
