//! Parts of sequences in a call, on all ranks that split their tokens.
use super::shards::TokenShards;
use crate::PassContext;
use kernels::{Kernels, Segment};
use std::ops::Range;
use std::rc::Rc;

impl<D: Kernels> PassContext<D> {
    /// Shards the sequences: this rank has the tokens that `shards` gives it.
    #[must_use]
    pub fn sharded(mut self, shards: TokenShards) -> Self {
        self.tokens.shards = shards;
        self.tokens.numbers.take();
        self.tokens.place(None);
        self
    }
    /// Returns whether tokens are generated: a cache is kept, and nothing for a backward.
    pub fn remembers(&self) -> bool {
        self.past.is_some() && !self.pass.keeps
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
