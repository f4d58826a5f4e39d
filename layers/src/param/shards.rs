//! Where the numbers of a parameter rest between their uses: whole on every rank that sums its gradient, or one shard on each.
//!
//! ```text
//! n numbers of this rank's share, b ranks    ⌈n/b⌉ consecutive ones on each, row by row; the last ranks have fewer, and zeros
//! ```
//!
//! Shards are cut parameter by parameter, so what is gathered is the matrix itself, and no buffer is cut into parameters.
//! Source: Rajbhandari et al., "`ZeRO`", §5, arXiv:1910.02054; Zhao et al., "FSDP", §3.2 (blocks), arXiv:2304.11277.
use crate::{Error, Result};
use comm::Group;
use kernels::Kernels;
use tensor::{Place, Tensor, View, ViewMut};

/// How much of a matrix a rank keeps between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rest {
    /// All of it.
    Whole,
    /// One of as many shards as there are ranks: `⌈n/ranks⌉` consecutive numbers of the parameter's `n`.
    Shard,
    /// One shard on each rank until it is used, and all of it from then on: of a value of which nothing is learnt.
    Gathered,
}

/// Where value, gradient and optimizer state of a parameter rest on the ranks that sum its gradient: DDP, `ZeRO` 1 to 3 and
/// HSDP are these words. What rests as a shard needs what comes after it, in this order, to rest as one, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rests {
    /// The value.
    pub value: Rest,
    /// The gradient.
    pub gradient: Rest,
    /// Moments and master.
    pub state: Rest,
    /// Shards lie over blocks of so many consecutive ranks; over all of them if nothing is said.
    pub block: Option<usize>,
}

impl Rests {
    /// Every rank has all of everything.
    pub const WHOLE: Self =
        Self { value: Rest::Whole, gradient: Rest::Whole, state: Rest::Whole, block: None };

    /// Whether somebody knows how to keep what rests so.
    fn check(self) -> Result<()> {
        let rests = [self.value, self.gradient, self.state].map(|rest| rest != Rest::Whole);
        if rests.is_sorted() && (rests[2] || self.block.is_none()) {
            return Ok(());
        }
        let words = rests.map(|shard| if shard { "shard" } else { "whole" }).join(", ");
        let blocks = self.block.map_or_else(String::new, |block| format!(" in blocks of {block}"));
        let wanted = "whole up to one of them and shard from there on, in blocks only where there are shards";
        Err(Error::size("the rest of value, gradient and optimizer state", words + &blocks, wanted))
    }
}

/// Which shard of a parameter is this rank's.
pub(crate) struct Shards<P: Place> {
    /// The ranks that have one each.
    pub(crate) group: Group<P>,
    /// The ranks that have the same one, each with a partial sum of it.
    pub(crate) peers: Group<P>,
    /// Numbers of one.
    pub(crate) len: usize,
}

impl<P: Place> Shards<P> {
    /// Those of `n` numbers whose gradient these ranks sum; none where they rest whole.
    ///
    /// # Errors
    /// If rests make no sense, or the ranks do not consist of such blocks.
    pub(crate) fn of(sum: &Group<P>, rests: Rests, n: usize) -> Result<Option<Self>> {
        rests.check()?;
        let block = if rests.state == Rest::Whole { 1 } else { rests.block.unwrap_or(sum.size()) };
        let ranks = block.min(sum.size());
        let (group, peers) = (sum.blocks(ranks)?, sum.split(|rank| rank % ranks)?);
        Ok((ranks > 1).then_some(Self { group, peers, len: n.div_ceil(ranks) }))
    }
    /// Asserts that all shards together hold a parameter's `n` numbers.
    pub(crate) fn hold(&self, name: &str, n: usize) {
        let all = self.len.saturating_mul(self.group.size());
        assert!(all >= n, "the shards of {name} hold {all} of {n} numbers");
    }
    /// The first number of this rank's shard.
    pub(crate) fn from(&self) -> usize {
        self.group.rank() * self.len
    }
}

/// Something of a parameter: all of it, this rank's shard, or both. What is whole has room for all shards, one a row.
pub(crate) struct Resting<D: Kernels> {
    pub(crate) whole: Option<Tensor<D>>,
    pub(crate) shard: Option<Tensor<D>>,
}

impl<D: Kernels> Resting<D> {
    /// What rests of it, if something does: the shard, or all.
    pub(crate) fn rest(&self) -> Option<&Tensor<D>> {
        self.shard.as_ref().or(self.whole.as_ref())
    }
    /// This rank's part, to write: its shard, which lies in what is whole if it does not rest alone, or all.
    pub(crate) fn own(&mut self, shards: Option<&Shards<D::Place>>) -> ViewMut<'_, D> {
        if let Some(shard) = &mut self.shard {
            return shard.view_mut();
        }
        let whole = self.whole.as_mut().expect("it rests whole").view_mut();
        match shards {
            Some(shards) => whole.take_rows(shards.group.rank(), 1),
            None => whole,
        }
    }
    /// The same as `rest`, to write.
    pub(crate) fn rest_mut(&mut self) -> Option<&mut Tensor<D>> {
        self.shard.as_mut().or(self.whole.as_mut())
    }
}

/// All of a parameter's share in the room of its shards, as the matrix that it is, to write.
pub(crate) fn matrix<D: Kernels>(x: ViewMut<D>, [rows, cols]: [usize; 2]) -> ViewMut<D> {
    let room = x.rows() * x.cols();
    x.reshape(1, room).take_cols(0, rows * cols).reshape(rows, cols)
}

/// Consecutive numbers of a matrix, row by row, as rectangles of it: the end of a row, whole rows, the beginning of one.
/// Gives of each the row and column where it begins, and the numbers.
pub(crate) fn rectangles<D: Kernels>(
    numbers: View<'_, D>,
    from: usize,
    [rows, cols]: [usize; 2],
) -> impl Iterator<Item = ([usize; 2], View<'_, D>)> {
    let room = numbers.rows() * numbers.cols();
    let (numbers, end) = (numbers.reshape(1, room), (from + room).min(rows * cols).max(from));
    let first = from.next_multiple_of(cols).min(end);
    let last = (end / cols * cols).max(first);
    [[from, first], [first, last], [last, end]].into_iter().filter(|[a, b]| a < b).map(move |[a, b]| {
        let wide = (b - a).min(cols);
        ([a / cols, a % cols], numbers.take_cols(a - from, b - a).reshape((b - a) / wide, wide))
    })
}
