//! What an exchange is, and who gives what to whom in one.
use crate::routing::{NOBODY, Routing};
use comm::{Axis, Group, Request};
use kernels::Kernels;
use layers::ops::{plus, rows_of};
use layers::{About, Design, Result, Shared, Sharing, Sizes};
use std::cell::Cell;
use tensor::{Index, Place, Tensor};

/// What a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A token: all its copies are handed the same row.
    Tokens,
    /// A copy of a token: a gate.
    Copies,
}

/// One way of tokens to their experts.
pub trait Exchange<D: Kernels>: Sync {
    /// Its description.
    fn about(&self) -> &'static About;
    /// Who gives what to whom, where `all[i]` are the experts of the tokens of rank `i` of the group, and each rank has as many of
    /// these experts.
    fn plan(
        &self,
        ep: &Group<D::Place>,
        all: &[Routing],
        experts: (usize, &MostRows),
        place: &D::Place,
    ) -> Dispatch<D::Place>;
    /// Starts to bring a row of each token, or copy, to the experts that it is handed to.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn begin(&self, plan: &Dispatch<D::Place>, x: Tensor<D>, what: Carried) -> Result<Request<D>>;
    /// Of what has come a row for each of the copies that experts here are handed, expert after expert; of each, rank after
    /// rank, token after token.
    fn end(&self, plan: &Dispatch<D::Place>, came: Tensor<D>, what: Carried) -> Tensor<D>;
    /// For each token here (or copy), the sum of its rows; 0 of one whose copies were dropped.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn back(&self, plan: &Dispatch<D::Place>, y: Tensor<D>, what: Carried) -> Result<Tensor<D>>;
}

/// The most rows that this rank's experts were handed at a time, rounded up to a 16th of what they could have been: so many have
/// room in what holds rows of experts, whatever they are handed next. It grows 16 times at most.
#[derive(Default)]
pub struct MostRows(Cell<usize>);

impl MostRows {
    /// For how many there is room by now.
    pub(crate) fn rows(&self) -> usize {
        self.0.get()
    }
    /// Once they are handed so many rows of these tokens, to so many experts here.
    pub(super) fn with(&self, rows: usize, all: &[Routing], experts: usize) -> usize {
        let tokens: usize = all.iter().map(|of| of.list.len() / of.chosen).sum();
        let most = tokens * all[0].chosen.min(experts);
        self.0.set(self.rows().max(rows.next_multiple_of(most.div_ceil(16).max(1))));
        self.rows()
    }
}

/// Who gives what to whom.
pub struct Dispatch<P: Place> {
    /// How many rows each expert here is handed.
    pub counts: Vec<usize>,
    /// For how many rows of experts here there is to be room.
    pub(crate) room: usize,
    /// The ranks of the exchange.
    pub(crate) ep: Group<P>,
    /// How many rows go between this rank and each: of an all-to-all those that are given, and taken; of an all-gather
    /// tokens, and copies.
    pub(crate) rows: [Vec<usize>; 2],
    /// Which rows are given, or taken: of tokens, and of copies.
    pub(crate) picks: [Index<P>; 2],
    /// For the `j`-th copy of each token, and for each copy, which row comes back.
    pub(crate) homes: [Vec<Index<P>>; 2],
    /// From the order in which rows come to that of experts, and back, where they differ.
    pub(crate) sorts: Option<[Index<P>; 2]>,
}

impl<P: Place> Dispatch<P> {
    /// These copies of tokens are the rows that are given, or taken, in this order; there may be `most` of them.
    pub(super) fn new(
        (ep, place): (&Group<P>, &P),
        (tokens, copies, most): (&Routing, &[Copy], usize),
        (counts, room): (Vec<usize>, usize),
        rows: [Vec<usize>; 2],
    ) -> Self {
        let k = tokens.chosen;
        let mut at = vec![NOBODY; tokens.list.len()];
        copies.iter().zip(0..).for_each(|(c, row)| at[c.at] = row);
        let pick = |each: usize| index(place, copies.iter().map(|c| (c.at / each) as u32), most);
        let home = |first: usize, each: usize| index(place, at.iter().skip(first).step_by(each).copied(), 0);
        let homes = [(0..k).map(|j| home(j, k)).collect(), vec![home(0, 1)]];
        Self { counts, room, ep: ep.clone(), rows, picks: [k, 1].map(pick), homes, sorts: None }
    }
}

/// What the ranks of an exchange share of a model: its experts.
pub(crate) fn shares(design: &Design, sizes: &Sizes) -> Vec<Shared> {
    let size = design.shape().and_then(|shape| shape.experts).map_or(0, |experts| experts.count);
    vec![Shared { what: "experts", size, over: sizes.along(Axis::Ep), by: Sharing::AtLeastOne }]
}

/// A copy of a token that an expert is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Copy {
    pub(crate) expert: usize,
    pub(crate) rank: usize,
    pub(crate) at: usize, // in the list of the rank
}

/// The copies of one rank's tokens that are handed to these experts, in order.
pub(crate) fn handed(of: &Routing, rank: usize, experts: std::ops::Range<usize>) -> Vec<Copy> {
    let handed =
        of.list.iter().enumerate().filter(|(_, e)| **e != NOBODY && experts.contains(&(**e as usize)));
    let mut all: Vec<_> = handed.map(|(at, &e)| Copy { expert: e as usize, rank, at }).collect();
    all.sort_unstable();
    all
}

/// These numbers where kernels read them, with room for so many.
pub(super) fn index<P: Place>(
    place: &P,
    numbers: impl ExactSizeIterator<Item = u32>,
    room: usize,
) -> Index<P> {
    Index::with_room(place, [numbers.len(), room.max(numbers.len())], numbers)
}

/// Of each token the sum of its rows.
pub(crate) fn added<D: Kernels>(y: &Tensor<D>, homes: &[Index<D::Place>]) -> Tensor<D> {
    let (first, others) = homes.split_first().expect("at least one copy of each token");
    others.iter().fold(rows_of(y, first), |sum, home| plus(sum, &rows_of(y, home)))
}
