//! The tokens of each rank: sequences are split over the data axis, and the tokens of each sequence over the
//! context axis. Created by a layout; used by all code that reads batches, caches, counts or prices tokens.
use crate::PassContext;
use comm::{Axis, Group, Mesh};
use kernels::{Kernels, Segment};
use std::ops::Range;
use std::rc::Rc;
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

impl<D: Kernels> PassContext<D> {
    /// Shards the sequences: this rank has the tokens that `shards` gives it.
    #[must_use]
    pub fn sharded(mut self, shards: TokenShards) -> Self {
        self.tokens.shards = shards;
        self.tokens.numbers.take();
        self.tokens.place(None);
        self
    }
    /// As [`with_cache`](Self::with_cache), for training on slices: `slices` lists each slice's part of every
    /// sequence.
    #[must_use]
    pub fn with_slices<L: IntoIterator<Item = Segment>>(self, slices: impl Iterator<Item = L>) -> Self {
        let ranks = self.tokens.shards.context_ranks();
        let (mut held, mut capacity) = (vec![0; self.tokens.parts.len() * ranks], 0);
        for slice in slices {
            for (held, part) in held.chunks_mut(ranks).zip(slice) {
                capacity = capacity.max(part.position + part.len);
                for (rank, held) in held.iter_mut().enumerate() {
                    *held +=
                        self.tokens.shards.stretches_of(rank, part.len).map(|of| of.len()).sum::<usize>();
                }
            }
        }
        let most = |rank| held.iter().skip(rank).step_by(ranks).copied().max().unwrap_or(0);
        self.cached(capacity, (0..ranks).map(most).collect())
    }
    /// Sets the lengths of each data rank's sequences in this call, for
    /// [`numbers_of_ranks`](PassContext::numbers_of_ranks). Supplied by the caller: a shape-only run cannot
    /// communicate.
    #[must_use]
    pub fn among<L: IntoIterator<Item = usize>>(mut self, lengths: impl IntoIterator<Item = L>) -> Self {
        self.tokens.among(lengths);
        self
    }
    /// Returns the numbers in this call of the tokens of each data and context rank
    /// ([`TokenShards::numbers`]), if their lengths were [set](PassContext::among); else an empty list.
    pub fn numbers_of_ranks(&self) -> Rc<Vec<Vec<Range<usize>>>> {
        let numbers = || {
            let mut lengths = self.tokens.of_ranks.iter().copied();
            let mut of_rank = |&parts: &usize| lengths.by_ref().take(parts).collect::<Vec<_>>();
            Rc::new(self.tokens.shards.numbers(self.tokens.parts_of.iter().map(&mut of_rank)))
        };
        self.tokens.numbers.borrow_mut().get_or_insert_with(numbers).clone()
    }
    /// Returns this call's part of each sequence, on all ranks that split its tokens; rows are counted over
    /// all these ranks.
    pub fn parts(&self) -> &[Segment] {
        &self.tokens.parts
    }
    /// Returns the index of the part of each of this rank's segments ([`PassContext::tokens`]).
    pub fn parts_of_tokens(&self) -> &[usize] {
        &self.tokens.of
    }
    /// Number of tokens on all ranks that split these sequences together.
    pub fn rows_of_parts(&self) -> usize {
        self.parts().last().map_or(0, |part| part.row + part.len)
    }
    /// Iterates over the items of this rank's tokens, from one list per sequence that begins at this call's
    /// first token of the sequence.
    pub fn own<'a, T>(&'a self, parts: &'a [Vec<T>]) -> impl Iterator<Item = &'a T> + Clone {
        self.tokens().iter().zip(self.parts_of_tokens()).flat_map(|(own, &part)| {
            let first = own.position - self.parts()[part].position;
            &parts[part][first..first + own.len]
        })
    }
    /// Returns the rows of a context rank's tokens, counted over all ranks that split the sequences.
    pub(crate) fn rows_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        self.tokens.dealt.iter().filter(move |of| of.rank == rank).map(|of| {
            let part = self.parts()[of.part];
            let first = part.row + of.position - part.position;
            first..first + of.len
        })
    }
    /// Returns which sequences with tokens in this call end on a context rank, by their number among these
    /// sequences.
    pub(crate) fn ends_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let open = self.tokens.dealt.chunk_by(|a, b| a.part == b.part).enumerate();
        open.filter(move |(_, of)| of.last().is_some_and(|of| of.rank == rank)).map(|(i, _)| i..i + 1)
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
