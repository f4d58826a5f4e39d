//! Which tokens each rank has: sequences are dealt over data ranks, and the tokens of each over context ranks. A layout
//! makes this object, and all that reads batches, caches, counts or prices tokens asks it.
use crate::Cx;
use comm::{Axis, Group, Mesh};
use kernels::{Kernels, Segment};
use std::ops::Range;
use tensor::Place;

/// How the tokens of a sequence are dealt: of so many tokens those of one of so many ranks, as stretches in order. Each token
/// is in one stretch of one rank.
pub type Stretches = fn(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>>;

/// The part of `n` things that the `rank`th of `ranks` gets: consecutive, sizes differing by at most one.
#[must_use]
pub fn deal(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

/// One stretch on each rank, of nearly equal lengths: contiguous tokens.
#[must_use]
pub fn contiguous(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
    vec![deal(tokens, rank, ranks)]
}

/// The tokens of one rank among those of all.
#[derive(Clone, Copy, Debug)]
pub struct TokenShards {
    data: (usize, usize),    // this rank, of how many
    context: (usize, usize), // this rank, of how many
    dealing: Stretches,
}

impl TokenShards {
    /// The axis over which sequences are dealt: along it, ranks that are dealt as many tokens hold the same.
    pub const SEQUENCES: Axis = Axis::Dp;
    /// The axis over which the tokens of each sequence are dealt.
    pub const CONTEXT: Axis = Axis::Cp;
    /// All tokens on one rank.
    pub const WHOLE: Self = Self { data: (0, 1), context: (0, 1), dealing: contiguous };

    /// The first of so many data ranks, each with so many context ranks that share its sequences' tokens.
    pub fn new([data, context]: [usize; 2], dealing: Stretches) -> Self {
        Self { data: (0, data), context: (0, context), dealing }
    }
    /// The same on this rank of a mesh.
    #[must_use]
    pub fn at<P: Place>(self, mesh: &Mesh<P>) -> Self {
        let along = |axis| (mesh.group(axis).rank(), mesh.group(axis).size());
        Self { data: along(Self::SEQUENCES), context: along(Self::CONTEXT), ..self }
    }
    /// The same on another data rank.
    #[must_use]
    pub fn of_data_rank(self, rank: usize) -> Self {
        Self { data: (rank, self.data.1), ..self }
    }
    /// The same on another context rank.
    #[must_use]
    pub fn of_context_rank(self, rank: usize) -> Self {
        Self { context: (rank, self.context.1), ..self }
    }
    /// The same data rank, as if it had all tokens of its sequences.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { context: (0, 1), ..self }
    }
    /// The ranks of a mesh that share the tokens of this rank's sequences.
    pub fn sharers<P: Place>(mesh: &Mesh<P>) -> &Group<P> {
        mesh.group(Self::CONTEXT)
    }
    /// How many data ranks there are.
    pub fn data_ranks(&self) -> usize {
        self.data.1
    }
    /// How many ranks share the tokens of a sequence.
    pub fn context_ranks(&self) -> usize {
        self.context.1
    }
    /// True on the first of the ranks that share the same sequences: what each of them knows is counted there.
    pub fn speaks(&self) -> bool {
        self.context.0 == 0
    }
    /// This data rank's sequences among so many.
    pub fn sequences(&self, all: usize) -> Range<usize> {
        deal(all, self.data.0, self.data.1)
    }
    /// This rank's tokens among so many of one sequence, as stretches in order.
    pub fn stretches(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        self.stretches_of(self.context.0, tokens)
    }
    /// The same of another context rank.
    pub fn stretches_of(
        &self,
        rank: usize,
        tokens: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        let shared = self.context.1 > 1;
        let dealt = shared.then(|| (self.dealing)(tokens, rank, self.context.1));
        (!shared).then_some(0..tokens).into_iter().chain(dealt.into_iter().flatten())
    }
    /// This rank's segments of a part of a sequence.
    pub(crate) fn segments(&self, part: Segment) -> impl Iterator<Item = Segment> + use<> {
        let own =
            move |of: Range<usize>| Segment { len: of.len(), position: part.position + of.start, ..part };
        self.stretches(part.len).map(own)
    }
    /// The context rank that has the last of so many tokens.
    pub(crate) fn has_last(&self, tokens: usize) -> usize {
        let has =
            |rank: &usize| self.stretches_of(*rank, tokens).any(|of| !of.is_empty() && of.end == tokens);
        (0..self.context.1).find(has).expect("each token is some rank's")
    }
    /// The numbers of all ranks' tokens, where data ranks have sequences of these lengths, one list each, and tokens are counted
    /// from sequence to sequence: rank by rank, context ranks within data ranks, as runs of consecutive numbers in order.
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
                        let of = first + of.start..first + of.end;
                        match runs.last_mut().filter(|run| run.end == of.start) {
                            Some(run) => run.end = of.end,
                            None => runs.push(of),
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

impl<D: Kernels> Cx<D> {
    /// The same pass, where this rank has of all sequences what these shards say.
    #[must_use]
    pub fn sharded(mut self, shards: TokenShards) -> Self {
        self.tokens.shards = shards;
        self.tokens.place(None);
        self
    }
    /// The same tokens among those of all ranks: the lengths of each data rank's sequences in this call. Supplied by the caller,
    /// because a shape-only run cannot communicate.
    #[must_use]
    pub fn among<L: IntoIterator<Item = usize>>(mut self, lengths: impl IntoIterator<Item = L>) -> Self {
        self.tokens.among(lengths);
        self
    }
    /// The numbers in this call of the tokens of each rank that tokens are dealt to ([`TokenShards::numbers`]), if that was
    /// [told](Cx::among); else nothing.
    pub fn numbers_of_ranks(&self) -> Vec<Vec<Range<usize>>> {
        let mut lengths = self.tokens.of_ranks.iter().copied();
        let mut of_rank = |&parts: &usize| lengths.by_ref().take(parts).collect::<Vec<_>>();
        self.tokens.shards.numbers(self.tokens.parts_of.iter().map(&mut of_rank))
    }
    /// Of each sequence what this call goes through, on all ranks that share its tokens; rows are counted over all of them.
    pub fn parts(&self) -> &[Segment] {
        &self.tokens.parts
    }
    /// The part of each of this rank's segments ([`Cx::tokens`]).
    pub fn parts_of_tokens(&self) -> &[usize] {
        &self.tokens.of
    }
    /// How many tokens all ranks together have that share these sequences.
    pub fn rows_of_parts(&self) -> usize {
        self.parts().last().map_or(0, |part| part.row + part.len)
    }
    /// Of a list for each sequence, what stands for this rank's tokens, which this call's part begins.
    pub fn own<'a, T>(&'a self, parts: &'a [Vec<T>]) -> impl Iterator<Item = &'a T> + Clone {
        let of = self.tokens().iter().zip(self.parts_of_tokens());
        of.flat_map(|(own, &part)| {
            let first = own.position - self.parts()[part].position;
            &parts[part][first..first + own.len]
        })
    }
    /// The rows of parts that a context rank's rows stand for.
    pub(crate) fn rows_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let shards = self.tokens.shards;
        let of = move |part: &Segment| {
            let first = part.row;
            shards.stretches_of(rank, part.len).map(move |of| first + of.start..first + of.end)
        };
        self.parts().iter().flat_map(of)
    }
    /// Which of the sequences that have tokens in this call end on a context rank, by their number among these.
    pub(crate) fn ends_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        let shards = self.tokens.shards;
        let open = self.parts().iter().filter(|part| part.len > 0).enumerate();
        open.filter(move |(_, part)| shards.has_last(part.len) == rank).map(|(i, _)| i..i + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: numbers that begin anew with each sequence or rank, stretches that are not joined, or joined over a gap.
    #[test]
    fn tokens_are_numbered_from_sequence_to_sequence() {
        let written = |numbers: Vec<Vec<Range<usize>>>| format!("{numbers:?}");
        let shards = TokenShards::new([2, 2], contiguous);
        let numbers = shards.numbers([vec![4, 0, 3], vec![2]]);
        assert_eq!(written(numbers), "[[0..2, 4..5], [2..4, 5..7], [7..8], [8..9]]");
        let whole = TokenShards::new([2, 1], contiguous).numbers([vec![4, 0, 3], vec![2]]);
        assert_eq!(written(whole), "[[0..7], [7..9]]");
        assert_eq!((shards.has_last(4), shards.has_last(1)), (1, 1));
        let striped = TokenShards::new([1, 3], |n, rank, ranks| {
            (rank..n).step_by(ranks).map(|token| token..token + 1).collect()
        });
        assert_eq!([1, 2, 3, 4, 5].map(|n| striped.has_last(n)), [0, 1, 2, 0, 1]);
        assert_eq!(written(striped.numbers([vec![4, 2]])), "[[0..1, 3..5], [1..2, 5..6], [2..3]]");
        assert_eq!((shards.of_data_rank(1).sequences(5), shards.sequences(5)), (2..5, 0..2));
    }
}
