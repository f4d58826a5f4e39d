//! What a rank makes of what the ranks of its group have: as it should, and otherwise.
use super::Mutation;
use crate::call::{Call, Counts, Op, Reduce};
use tensor::Scalar;

/// What one rank has, for a call.
#[derive(Clone)]
pub(super) struct Has<S> {
    pub(super) data: Vec<S>,
    /// The rows of it that go to each rank, where these differ.
    pub(super) give: Vec<usize>,
}

/// One call of one rank, with what all have.
pub(super) struct Scene<'a, S> {
    pub(super) call: &'a Call,
    /// This rank, and how many there are.
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Of what comes from one rank, or goes to it.
    pub(super) root: usize,
    /// What every rank of the group has.
    pub(super) all: Vec<Has<S>>,
    /// What those along another axis have, if that is asked for.
    pub(super) other: Vec<Has<S>>,
    /// What the last call like this gave.
    pub(super) last: Option<Vec<S>>,
    /// How many elements this rank gets.
    pub(super) len: usize,
}

/// Of whom something has come.
type From<'a, S> = [Option<&'a Has<S>>];

impl<S: Scalar> Scene<'_, S> {
    /// What the rank should get.
    pub(super) fn honest(&self) -> Vec<S> {
        self.answer(&self.of(|_| true), self.rank)
    }
    /// What it gets.
    pub(super) fn mutated(&self, mutation: Mutation) -> Vec<S> {
        let (n, count) = (self.ranks, S::from_usize(self.ranks));
        let times = |factor: S| self.honest().into_iter().map(|x| x * factor).collect();
        let alone = || self.answer(&self.of(|rank| rank == self.rank), self.rank);
        match mutation {
            Mutation::Skip => alone(),
            Mutation::Repeat => self.repeated(),
            Mutation::Average => times(count.inv()),
            Mutation::Sum => times(count),
            Mutation::Part => self.answer(&self.of(|rank| rank > 0), self.rank),
            Mutation::Axis if self.call.reduce.is_some() => {
                self.answer(&self.other.iter().map(Some).collect::<Vec<_>>(), self.rank)
            }
            Mutation::Axis => {
                let cyclic: Vec<_> = self.other.iter().map(Some).cycle().take(n).collect();
                self.answer(&cyclic, self.rank)
            }
            Mutation::Neighbour => {
                let mut from = self.of(|_| true);
                if self.call.op != Op::Scatter {
                    from.rotate_right(1); // what rank i gives is taken for rank i+1's
                }
                self.answer(&from, (self.rank + 1) % n)
            }
            Mutation::Stale => self.last.clone().unwrap_or_else(|| vec![S::ZERO; self.len]),
            Mutation::Tail => {
                let (mut result, own) = (self.honest(), alone());
                self.ends().for_each(|end| result[end] = own[end]);
                result
            }
        }
    }
    /// Those of the group to whom this applies.
    fn of(&self, comes: impl Fn(usize) -> bool) -> Vec<Option<&Has<S>>> {
        self.all.iter().enumerate().map(|(rank, has)| comes(rank).then_some(has)).collect()
    }
    fn repeated(&self) -> Vec<S> {
        let once = self.honest();
        match (self.call.op, self.call.reduce) {
            (Op::AllReduce, Some(reduce)) => {
                let again = |&x: &S| (1..self.ranks).fold(x, |sum, _| join(reduce, sum, x));
                once.iter().map(again).collect()
            }
            (Op::ReduceScatter, _) => once.iter().map(|&x| x + x).collect(),
            (Op::AllToAll, _) => self.all[self.rank].data.clone(),
            _ => once,
        }
    }
    /// The call's result, for who acts as rank `me`, from what has come.
    fn answer(&self, from: &From<S>, me: usize) -> Vec<S> {
        let mut out = match self.call.op {
            Op::AllReduce => self.reduction(from, 0, self.len),
            Op::ReduceScatter => {
                let [at, len] = block(self.list(), self.call.cols, me, self.len);
                self.reduction(from, at, len)
            }
            Op::Broadcast => from[self.root].map_or(&self.all[self.rank], |has| has).data.clone(),
            Op::Scatter => from[self.root].map_or(vec![], |has| part(&has.data, me * self.len, self.len)),
            Op::AllToAll => self.exchanged(from, me),
            _ => self.gathered(from),
        };
        out.resize(self.len, S::ZERO);
        out
    }
    /// `len` elements from `at` on, reduced over all that have come.
    fn reduction(&self, from: &From<S>, at: usize, len: usize) -> Vec<S> {
        let how = self.call.reduce.expect("how addends become one value");
        let mut addends = from.iter().flatten().map(|has| part(&has.data, at, len));
        let first = addends.next().expect("one rank or more");
        addends.fold(first, |sum, x| sum.into_iter().zip(x).map(|(a, b)| join(how, a, b)).collect())
    }
    /// Everyone's, below each other; zeros where nothing has come.
    fn gathered(&self, from: &From<S>) -> Vec<S> {
        let mut out = vec![];
        for (rank, has) in from.iter().enumerate() {
            out.extend(part(has.map_or(&[], |has| &has.data), 0, self.came_from(rank)));
        }
        out
    }
    /// From each its block for `me`.
    fn exchanged(&self, from: &From<S>, me: usize) -> Vec<S> {
        let mut out = vec![];
        for (rank, has) in from.iter().enumerate() {
            let len = self.came_from(rank);
            let give = has.map(|has| &has.give[..]).filter(|give| !give.is_empty());
            let [at, _] = block(give, self.call.cols, me, len);
            out.extend(part(has.map_or(&[], |has| &has.data), at, len));
        }
        out
    }
    /// How many elements of the result are those of one rank, where they are not added.
    fn came_from(&self, rank: usize) -> usize {
        match &self.call.counts {
            Some(Counts::Of(counts) | Counts::Between(_, counts)) => counts[rank] * self.call.cols,
            Some(Counts::Columns(_)) | None => self.len / self.ranks,
        }
    }
    /// Where what comes ends.
    fn ends(&self) -> impl Iterator<Item = usize> {
        let blocks = match self.call.op {
            Op::AllGather | Op::Gather | Op::AllToAll => {
                (0..self.ranks).map(|rank| self.came_from(rank)).collect()
            }
            _ => vec![self.len],
        };
        let mut at = 0;
        blocks.into_iter().filter(|&len| len > 0).map(move |len| {
            at += len;
            at - 1
        })
    }
    fn list(&self) -> Option<&[usize]> {
        match &self.call.counts {
            Some(Counts::Of(counts)) => Some(counts),
            _ => None,
        }
    }
}

/// Where the block of a rank begins and how long it is, in elements: by counts of rows, or all of one length.
fn block(counts: Option<&[usize]>, cols: usize, rank: usize, even: usize) -> [usize; 2] {
    match counts {
        None => [rank * even, even],
        Some(counts) => [counts[..rank].iter().sum::<usize>() * cols, counts[rank] * cols],
    }
}

/// `len` elements from `at` on; zeros where there are none.
fn part<S: Scalar>(data: &[S], at: usize, len: usize) -> Vec<S> {
    (at..at + len).map(|i| data.get(i).copied().unwrap_or(S::ZERO)).collect()
}

fn join<S: Scalar>(reduce: Reduce, a: S, b: S) -> S {
    match reduce {
        Reduce::Sum => a + b,
        Reduce::Stab => S::stab(a, b),
    }
}

/// A mutant's answer to a call of plain values: what came of every rank, as bytes, `size` to a value.
pub(super) fn values(
    mutation: Mutation,
    all: &[Vec<u8>],
    other: &[Vec<u8>],
    (rank, size): (usize, usize),
    last: Option<Vec<Vec<u8>>>,
) -> Vec<Vec<u8>> {
    let n = all.len();
    let zeros = |of: &Vec<u8>| vec![0; of.len()];
    let only = |comes: &dyn Fn(usize) -> bool| {
        let one = |(i, has): (usize, &Vec<u8>)| if comes(i) { has.clone() } else { zeros(has) };
        all.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    match mutation {
        Mutation::Skip => only(&|i| i == rank),
        Mutation::Part => only(&|i| i > 0),
        Mutation::Axis => other.iter().cycle().take(n).cloned().collect(),
        Mutation::Neighbour => (0..n).map(|i| all[(i + n - 1) % n].clone()).collect(),
        Mutation::Stale => last.unwrap_or_else(|| all.iter().map(zeros).collect()),
        Mutation::Tail => {
            let mut came = all.to_vec();
            for (_, has) in came.iter_mut().enumerate().filter(|(i, _)| *i != rank) {
                has.iter_mut().rev().take(size).for_each(|byte| *byte = 0);
            }
            came
        }
        Mutation::Repeat | Mutation::Average | Mutation::Sum => all.to_vec(),
    }
}
