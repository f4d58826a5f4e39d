//! Result of a call on one rank, honest and mutated, from the inputs of all ranks of its group.
use super::site::Mutation;
use crate::call::{Call, Counts, Op, Reduce};
use tensor::Scalar;

/// Input of one rank to a call.
#[derive(Clone)]
pub(super) struct Has<S> {
    pub(super) data: Vec<S>,
    /// Rows that go to each rank, if the ranks get different numbers of rows.
    pub(super) give: Vec<usize>,
}

/// One call of one rank, with the inputs of all ranks.
pub(super) struct Scene<'a, S> {
    pub(super) call: &'a Call,
    /// This rank, of `ranks` ranks.
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Root rank of a broadcast, gather or scatter.
    pub(super) root: usize,
    /// Inputs of all ranks of the group.
    pub(super) all: Vec<Has<S>>,
    /// Inputs of the ranks along another axis; empty unless the mutation needs them.
    pub(super) other: Vec<Has<S>>,
    /// Result of the last call of the same operation and shape.
    pub(super) last: Option<Vec<S>>,
    /// Number of elements that this rank gets.
    pub(super) len: usize,
}

/// Input of each rank; `None` if nothing arrives from it.
type From<'a, S> = [Option<&'a Has<S>>];

impl<S: Scalar> Scene<'_, S> {
    /// Returns the result that the rank should get.
    pub(super) fn honest(&self) -> Vec<S> {
        self.answer(&self.of(|_| true), self.rank)
    }
    /// Returns the result that the rank gets under a mutation.
    pub(super) fn mutated(&self, mutation: Mutation) -> Vec<S> {
        let n = self.ranks;
        let count = S::from_usize(self.ranks);
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
                    from.rotate_right(1); // rank i's input is taken for rank i+1's
                }
                self.answer(&from, (self.rank + 1) % n)
            }
            Mutation::Stale => self.last.clone().unwrap_or_else(|| vec![S::ZERO; self.len]),
            Mutation::Tail => {
                let mut result = self.honest();
                let local = alone();
                self.ends().for_each(|end| result[end] = local[end]);
                result
            }
        }
    }
    /// Returns the inputs of the ranks for which `comes` is true, and `None` for the others.
    fn of(&self, comes: impl Fn(usize) -> bool) -> Vec<Option<&Has<S>>> {
        self.all.iter().enumerate().map(|(rank, has)| comes(rank).then_some(has)).collect()
    }
    fn repeated(&self) -> Vec<S> {
        let once = self.honest();
        match (self.call.op, self.call.reduce) {
            (Op::AllReduce, Some(reduce)) => {
                once.iter().map(|&x: &S| (1..self.ranks).fold(x, |sum, _| join(reduce, sum, x))).collect()
            }
            (Op::ReduceScatter, _) => once.iter().map(|&x| x + x).collect(),
            (Op::AllToAll, _) => self.all[self.rank].data.clone(),
            _ => once,
        }
    }
    /// Computes the call's result on rank `me` from the inputs that arrived.
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
    /// Reduces `len` elements from `at` on over all inputs that arrived.
    fn reduction(&self, from: &From<S>, at: usize, len: usize) -> Vec<S> {
        let how = self.call.reduce.expect("how addends become one value");
        let mut addends = from.iter().flatten().map(|has| part(&has.data, at, len));
        let first = addends.next().expect("one rank or more");
        addends.fold(first, |sum, x| sum.into_iter().zip(x).map(|(a, b)| join(how, a, b)).collect())
    }
    /// Concatenates the inputs of all ranks; zeros for those that did not arrive.
    fn gathered(&self, from: &From<S>) -> Vec<S> {
        let mut out = vec![];
        for (rank, has) in from.iter().enumerate() {
            out.extend(part(has.map_or(&[], |has| &has.data), 0, self.came_from(rank)));
        }
        out
    }
    /// Concatenates each rank's block for `me`; zeros for those that did not arrive.
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
    /// Number of elements of the result that come from one rank, if inputs are not added.
    fn came_from(&self, rank: usize) -> usize {
        match &self.call.counts {
            Some(Counts::Of(counts) | Counts::Between(_, counts)) => counts[rank] * self.call.cols,
            Some(Counts::Columns(_)) | None => self.len / self.ranks,
        }
    }
    /// Indices of the last element of each block of the result.
    fn ends(&self) -> impl Iterator<Item = usize> {
        let blocks = match self.call.op {
            Op::AllGather | Op::Gather | Op::AllToAll => {
                (0..self.ranks).map(|rank| self.came_from(rank)).collect()
            }
            _ => vec![self.len],
        };
        let mut end = 0;
        blocks.into_iter().filter(|&len| len > 0).map(move |len| {
            end += len;
            end - 1
        })
    }
    fn list(&self) -> Option<&[usize]> {
        match &self.call.counts {
            Some(Counts::Of(counts)) => Some(counts),
            _ => None,
        }
    }
}

/// Start and length of a rank's block, in elements: by counts of rows, or `even` for every rank.
fn block(counts: Option<&[usize]>, cols: usize, rank: usize, even: usize) -> [usize; 2] {
    match counts {
        None => [rank * even, even],
        Some(counts) => [counts[..rank].iter().sum::<usize>() * cols, counts[rank] * cols],
    }
}

/// Copies `len` elements from `at` on; zeros beyond the end of `data`.
fn part<S: Scalar>(data: &[S], at: usize, len: usize) -> Vec<S> {
    (at..at + len).map(|i| data.get(i).copied().unwrap_or(S::ZERO)).collect()
}

fn join<S: Scalar>(reduce: Reduce, a: S, b: S) -> S {
    match reduce {
        Reduce::Sum => a + b,
        Reduce::Stab => S::stab(a, b),
    }
}

/// Returns a mutant's answer to a call of plain values: bytes from every rank, `size` to a value.
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
