//! The trait of token dispatchers, and the plan of one dispatch.
use crate::routing::{DROPPED, Routing, tally};
use comm::{Axis, Group, Request};
use kernels::Kernels;
use layers::{Design, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule, Result, plus, rows_of};
use std::cell::Cell;
use tensor::{Index, Place, Tensor};

/// Owner of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A token: all its copies get the same row.
    Tokens,
    /// A copy of a token: a gate.
    Copies,
}

/// A token dispatcher.
pub trait TokenDispatcher<D: Kernels>: Sync {
    /// Its description.
    fn about(&self) -> &'static StrategyInfo;
    /// Plans the rows that ranks send to each other. `all[i]` is the routing of the tokens of rank `i` of the
    /// group, and every rank has the same number of the experts.
    fn plan(
        &self,
        ep: &Group<D::Place>,
        all: &[Routing],
        experts: (usize, &RowCapacity),
        place: &D::Place,
    ) -> Dispatch<D::Place>;
    /// Starts to send a row of each token, or copy, to the experts that take it.
    ///
    /// # Errors
    /// If a collective fails.
    fn begin(&self, plan: &Dispatch<D::Place>, x: Tensor<D>, what: RowKind) -> Result<Request<D>>;
    /// Returns the received rows: one for each copy that this rank's experts take, by expert, then rank, then
    /// token.
    fn end(&self, plan: &Dispatch<D::Place>, came: Tensor<D>, what: RowKind) -> Tensor<D>;
    /// Returns the sum of the rows of each of this rank's tokens (or copies); 0 if its copies were dropped.
    ///
    /// # Errors
    /// If a collective fails.
    fn back(&self, plan: &Dispatch<D::Place>, y: Tensor<D>, what: RowKind) -> Result<Tensor<D>>;
}

/// Largest number of rows that this rank's experts have taken at a time, rounded up to a 16th of the largest
/// number possible. Buffers of experts' rows have room for this number, whatever the experts take next. It
/// grows 16 times at most.
#[derive(Default)]
pub struct RowCapacity(Cell<usize>);

impl RowCapacity {
    /// Number of rows that there is room for now.
    pub(crate) fn rows(&self) -> usize {
        self.0.get()
    }
    /// Makes room for `rows` rows of these tokens, for `experts` experts on this rank. Returns the number
    /// that there is room for.
    pub(super) fn with(&self, rows: usize, all: &[Routing], experts: usize) -> usize {
        let tokens: usize = all.iter().map(Routing::tokens).sum();
        let most = tokens * all[0].chosen.min(experts);
        self.0.set(self.rows().max(rows.next_multiple_of(most.div_ceil(16).max(1))));
        self.rows()
    }
}

/// Plan of one dispatch: the rows that ranks send to each other.
pub struct Dispatch<P: Place> {
    /// Number of rows of each expert on this rank.
    pub counts: Vec<usize>,
    /// Number of rows that buffers of this rank's experts have room for.
    pub(crate) room: usize,
    /// The ranks of the dispatch.
    pub(crate) ep: Group<P>,
    /// Numbers of rows between this rank and each other. In an all-to-all: rows sent, and rows received. In
    /// an all-gather: tokens, and copies.
    pub(crate) rows: [Vec<usize>; 2],
    /// Rows to send (all-to-all) or to take (all-gather): for tokens, and for copies.
    pub(crate) picks: [Index<P>; 2],
    /// Row that returns for the `j`-th copy of each token, and for each copy.
    pub(crate) homes: [Vec<Index<P>>; 2],
    /// Permutations from the order of arrival to the experts' order, and back; `None` if the two are the
    /// same.
    pub(crate) sorts: Option<[Index<P>; 2]>,
}

impl<P: Place> Dispatch<P> {
    /// Creates a plan in which these copies of tokens are the rows sent, or taken, in this order; there may
    /// be `most` of them. If routings are stated by a rule, their number is all that is known of them.
    pub(super) fn new(
        (ep, place): (&Group<P>, &P),
        (tokens, (sent, copies), most): (&Routing, (usize, &[Copy]), usize),
        (counts, room): (Vec<usize>, usize),
        rows: [Vec<usize>; 2],
    ) -> Self {
        let (k, len) = (tokens.chosen, tokens.len());
        let mut slots = vec![DROPPED; if tokens.list().is_some() { len } else { 0 }];
        copies.iter().zip(0..).for_each(|(c, row)| slots[c.at] = row);
        let pick = |each: usize| index(place, sent, copies.iter().map(|c| (c.at / each) as u32), most);
        let home = |first: usize, each: usize| {
            index(place, (len - first).div_ceil(each), slots.iter().skip(first).step_by(each).copied(), 0)
        };
        let homes = [(0..k).map(|j| home(j.min(len), k)).collect(), vec![home(0, 1)]];
        Self { counts, room, ep: ep.clone(), rows, picks: [k, 1].map(pick), homes, sorts: None }
    }
}

/// The part of a model that the ranks of a dispatcher divide: its experts.
pub(crate) fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let size = design.shape().and_then(|shape| shape.experts).map_or(0, |experts| experts.count);
    vec![DividedSize { what: "experts", size, over: sizes.along(Axis::Ep), by: DivisionRule::AtLeastOne }]
}

/// A copy of a token, routed to one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) expert: usize,
    pub(crate) rank: usize,
    pub(crate) at: usize, // index in the rank's list
}

/// Copies of one rank's tokens that are routed to these experts, in order; none if a rule states them.
pub(crate) fn dispatched(of: &Routing, rank: usize, experts: std::ops::Range<usize>) -> Vec<Copy> {
    let list = of.list().unwrap_or_default().iter();
    let dispatched = list.enumerate().filter(|(_, e)| **e != DROPPED && experts.contains(&(**e as usize)));
    let copies: Vec<_> = dispatched.map(|(at, &e)| Copy { expert: e as usize, rank, at }).collect();
    sorted(&copies, experts.end, |copy| copy.expert)
}

/// Sorts by keys below `end`; equal ones stay in their order.
pub(crate) fn sorted<T: std::marker::Copy>(all: &[T], end: usize, key: impl Fn(&T) -> usize) -> Vec<T> {
    let mut places = tally(end, all.iter().map(&key));
    let mut free = 0;
    for place in &mut places {
        free += std::mem::replace(place, free);
    }
    let mut sorted = all.to_vec();
    for one in all {
        let place = &mut places[key(one)];
        sorted[*place] = *one;
        *place += 1;
    }
    sorted
}

/// Puts `len` numbers where kernels read them, with room for `room` numbers.
pub(super) fn index<P: Place>(
    place: &P,
    len: usize,
    numbers: impl Iterator<Item = u32>,
    room: usize,
) -> Index<P> {
    Index::with_room(place, [len, room.max(len)], numbers)
}

/// Returns the sum of each token's rows.
pub(crate) fn added<D: Kernels>(y: &Tensor<D>, homes: &[Index<D::Place>]) -> Tensor<D> {
    let (first, others) = homes.split_first().expect("at least one copy of each token");
    others.iter().fold(rows_of(y, first), |sum, home| plus(sum, &rows_of(y, home)))
}

#[cfg(test)]
mod tests {
    use super::sorted;

    /// Kills: equal keys in another order, a place one off, a key that none has.
    #[test]
    fn equal_keys_stay_in_their_order() {
        let all = [(3, 0), (1, 1), (3, 2), (0, 3), (1, 4)];
        assert_eq!(sorted(&all, 5, |one| one.0), [(0, 3), (1, 1), (1, 4), (3, 0), (3, 2)]);
        assert!(sorted(&all[..0], 5, |one| one.0).is_empty());
    }
}
