//! The tokens of each rank: sequences are split over the data axis, and the tokens of each sequence over the
//! context axis. Created by a layout; used by all code that reads batches, caches, counts or prices tokens.
use comm::{Axis, Group, Mesh};
use std::ops::Range;
use tensor::Place;

/// Distribution of a sequence's tokens: returns the tokens of rank `rank` of `ranks` as stretches (ranges in
/// order). Each token is in one stretch of one rank.
pub type Stretches = fn(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>>;

/// Returns the range of `n` items that the `rank`th of `ranks` gets: consecutive, sizes differing by at most
/// one.
#[must_use]
pub fn deal(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

/// Contiguous tokens: one stretch on each rank, of nearly equal lengths.
#[must_use]
pub fn contiguous(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
    vec![deal(tokens, rank, ranks)]
}

/// One rank's tokens among those of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct TokenShards {
    data: (usize, usize),    // (rank, number of ranks)
    context: (usize, usize), // (rank, number of ranks)
    dealing: Stretches,
}

impl TokenShards {
    /// The axis that sequences are split over: ranks along it with the same number of tokens use the same
    /// amount of memory.
    pub const SEQUENCES: Axis = Axis::Dp;
    /// The axis that the tokens of each sequence are split over.
    pub const CONTEXT: Axis = Axis::Cp;
    /// All tokens on one rank.
    pub const WHOLE: Self = Self { data: (0, 1), context: (0, 1), dealing: contiguous };

    /// The first of `data` data ranks, each of `context` context ranks that split its sequences' tokens.
    pub fn new([data, context]: [usize; 2], dealing: Stretches) -> Self {
        Self { data: (0, data), context: (0, context), dealing }
    }
    /// Returns these shards for this rank of a mesh.
    #[must_use]
    pub fn at<P: Place>(self, mesh: &Mesh<P>) -> Self {
        let along = |axis| (mesh.group(axis).rank(), mesh.group(axis).size());
        Self { data: along(Self::SEQUENCES), context: along(Self::CONTEXT), ..self }
    }
    /// Returns these shards for another data rank.
    #[must_use]
    pub fn of_data_rank(self, rank: usize) -> Self {
        Self { data: (rank, self.data.1), ..self }
    }
    /// Returns these shards for another context rank.
    #[must_use]
    pub fn of_context_rank(self, rank: usize) -> Self {
        Self { context: (rank, self.context.1), ..self }
    }
    /// Returns these shards as if this rank had all tokens of its data rank's sequences.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { context: (0, 1), ..self }
    }
    /// Returns the ranks of a mesh that split the tokens of this rank's sequences.
    pub fn sharers<P: Place>(mesh: &Mesh<P>) -> &Group<P> {
        mesh.group(Self::CONTEXT)
    }
    /// Number of data ranks.
    pub fn data_ranks(&self) -> usize {
        self.data.1
    }
    /// Number of ranks that split the tokens of a sequence.
    pub fn context_ranks(&self) -> usize {
        self.context.1
    }
    /// This rank's number among them.
    pub(crate) fn context_rank(&self) -> usize {
        self.context.0
    }
    /// True on the first of the ranks that split the same sequences: counts that all of them know are taken
    /// from this rank.
    pub fn speaks(&self) -> bool {
        self.context.0 == 0
    }
    /// Returns the range of this data rank's sequences among `all`.
    pub fn sequences(&self, all: usize) -> Range<usize> {
        deal(all, self.data.0, self.data.1)
    }
    /// Returns this rank's tokens among `tokens` of one sequence, as stretches in order.
    pub fn stretches(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        self.stretches_of(self.context.0, tokens)
    }
    /// Returns the stretches of another context rank.
    pub fn stretches_of(
        &self,
        rank: usize,
        tokens: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        let shared = self.context.1 > 1;
        let dealt = shared.then(|| (self.dealing)(tokens, rank, self.context.1));
        (!shared).then_some(0..tokens).into_iter().chain(dealt.into_iter().flatten())
    }
    /// Returns the token numbers of each rank (context ranks within data ranks), as runs of consecutive
    /// numbers in order. `lengths` has one list of sequence lengths per data rank; tokens are numbered from
    /// sequence to sequence.
    pub fn numbers<L: IntoIterator<Item = usize>>(
        &self,
        lengths: impl IntoIterator<Item = L>,
    ) -> Vec<Vec<Range<usize>>> {
        let (mut all, mut first) = (Vec::new(), 0);
        for lengths in lengths {
            let mut of_ranks: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.context.1];
            for tokens in lengths {
                for (rank, runs) in of_ranks.iter_mut().enumerate() {
                    for of in self.stretches_of(rank, tokens).filter(|of| !of.is_empty()) {
                        let range = first + of.start..first + of.end;
                        match runs.last_mut().filter(|run| run.end == range.start) {
                            Some(run) => run.end = range.end,
                            None => runs.push(range),
                        }
                    }
                }
                first += tokens;
            }
            all.append(&mut of_ranks);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: numbers that begin anew with each sequence or rank, stretches that are not joined, or joined
    /// over a gap.
    #[test]
    fn tokens_are_numbered_from_sequence_to_sequence() {
        let written = |numbers: Vec<Vec<Range<usize>>>| format!("{numbers:?}");
        let shards = TokenShards::new([2, 2], contiguous);
        let numbers = shards.numbers([vec![4, 0, 3], vec![2]]);
        assert_eq!(written(numbers), "[[0..2, 4..5], [2..4, 5..7], [7..8], [8..9]]");
        let whole = TokenShards::new([2, 1], contiguous).numbers([vec![4, 0, 3], vec![2]]);
        assert_eq!(written(whole), "[[0..7], [7..9]]");
        let striped = TokenShards::new([1, 3], |n, rank, ranks| {
            (rank..n).step_by(ranks).map(|token| token..token + 1).collect()
        });
        assert_eq!(written(striped.numbers([vec![4, 2]])), "[[0..1, 3..5], [1..2, 5..6], [2..3]]");
        assert_eq!((shards.of_data_rank(1).sequences(5), shards.sequences(5)), (2..5, 0..2));
    }
}
