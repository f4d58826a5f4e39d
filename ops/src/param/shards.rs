//! Sharding of a parameter at rest: whole on every rank that sums its gradient, or one shard on each.
//!
//! ```text
//! n elements of the local part, b ranks    ⌈n/b⌉ consecutive elements each, row by row; the last ranks have
//!                                          fewer, and zeros
//! in grains of g elements                  ⌈⌈n/g⌉/b⌉ grains each: no block of optimizer state is cut
//! ```
//!
//! Shards are cut parameter by parameter, so an all-gather returns the matrix itself, without a flat buffer
//! to split.
//!
//! Source: Rajbhandari et al., "`ZeRO`", §5, arXiv:1910.02054; Zhao et al., "FSDP", §3.2 (subgroups),
//! arXiv:2304.11277.
use crate::{Error, Result};
use comm::Group;
use kernels::Kernels;
use tensor::{Device, Place, Strided, ViewMut};

/// Part of a tensor that a rank keeps at rest, between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AtRest {
    /// The whole.
    Whole,
    /// One shard per rank: `⌈n/ranks⌉` consecutive elements of the parameter's `n`, in whole grains.
    Shard,
    /// One shard per rank until the first use, the whole from then on: for values that are not trained.
    Gathered,
    /// The whole on the first of these ranks, the root, which lends others the value for each microbatch.
    Root,
}

/// Sharding at rest of a parameter's value, gradient and optimizer state over the ranks that sum its
/// gradient. DDP, `ZeRO` 1 to 3, HSDP and DP are values of this type. If a field is sharded, the fields after
/// it (value, gradient, state) must be sharded too; either all of them rest on the root, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardingStrategy {
    /// The value.
    pub value: AtRest,
    /// The gradient.
    pub gradient: AtRest,
    /// Moments and master.
    pub state: AtRest,
    /// Shards are spread over subgroups of this number of consecutive ranks; `None`: over all ranks.
    pub subgroup: Option<usize>,
    /// Number of tiles of a linear layer's outputs, whose sharded value is gathered tile after tile; 1: all
    /// at once, before the layer's bucket is used.
    pub tiles: usize,
}

impl ShardingStrategy {
    /// Every rank keeps everything whole.
    pub const WHOLE: Self = Self {
        value: AtRest::Whole,
        gradient: AtRest::Whole,
        state: AtRest::Whole,
        subgroup: None,
        tiles: 1,
    };
    /// Only the root keeps anything.
    pub const ROOT: Self =
        Self { value: AtRest::Root, gradient: AtRest::Root, state: AtRest::Root, ..Self::WHOLE };

    /// Returns an error if this sharding is not supported.
    fn check(self) -> Result<()> {
        if self.tiles > 1 && self.value != AtRest::Shard {
            return Err(Error::size(
                "the number of tiles of a value that is not sharded at rest",
                self.tiles,
                "1",
            ));
        }
        let kinds = [self.value, self.gradient, self.state];
        let rests = kinds.map(|rest| rest != AtRest::Whole);
        if self == Self::ROOT
            || !kinds.contains(&AtRest::Root) && rests.is_sorted() && (rests[2] || self.subgroup.is_none())
        {
            return Ok(());
        }
        let words = rests.map(|shard| if shard { "shard" } else { "whole" }).join(", ");
        let consecutive =
            self.subgroup.map_or_else(String::new, |subgroup| format!(" in subgroups of {subgroup}"));
        let wanted = "whole for the first ones and shard for the others, and only shards can be in subgroups";
        Err(Error::size("the sharding of value, gradient and optimizer state", words + &consecutive, wanted))
    }
}

/// This rank's shard of a parameter.
pub(crate) struct Shards<P: Place> {
    /// The ranks that have one shard each.
    pub(crate) group: Group<P>,
    /// The ranks that have the same shard, each with a partial sum of it.
    pub(crate) peers: Group<P>,
    /// Number of elements of a shard.
    pub(crate) len: usize,
}

impl<P: Place> Shards<P> {
    /// Returns this rank's shard of `n` elements, in grains of `grain`, whose gradient is summed over the
    /// group `sum`; `None` if they are kept whole.
    ///
    /// # Errors
    /// If the sharding is not supported, or the ranks do not form subgroups of this size.
    pub(crate) fn of(
        sum: &Group<P>,
        rests: ShardingStrategy,
        (n, grain): (usize, usize),
    ) -> Result<Option<Self>> {
        rests.check()?;
        let subgroup = if rests.state == AtRest::Shard { rests.subgroup.unwrap_or(sum.size()) } else { 1 };
        let ranks = subgroup.min(sum.size());
        let (group, peers) = (sum.consecutive(ranks)?, sum.split(|rank| rank % ranks)?);
        Ok((ranks > 1).then_some(Self { group, peers, len: n.div_ceil(grain).div_ceil(ranks) * grain }))
    }
    /// Asserts that all shards together hold a parameter's `n` elements.
    pub(crate) fn hold(&self, name: &str, n: usize) {
        let room = self.len.saturating_mul(self.group.size());
        assert!(room >= n, "the shards of {name} hold {room} of {n} elements");
    }
    /// Index of the first element of this rank's shard.
    pub(crate) fn from(&self) -> usize {
        self.group.rank() * self.len
    }
}

/// Returns the local part, stored in a buffer with room for its shards, as a matrix for writing.
pub(crate) fn matrix<D: Kernels>(x: ViewMut<D>, [rows, cols]: [usize; 2]) -> ViewMut<D> {
    let room = x.rows() * x.cols();
    x.reshape(1, room).take_cols(0, rows * cols).reshape(rows, cols)
}

/// A rectangle of a matrix whose elements are some of a list of consecutive elements.
pub(crate) struct Rectangle {
    /// Its first row and column in the matrix.
    pub(crate) begin: [usize; 2],
    /// Number of rows and columns.
    pub(crate) shape: [usize; 2],
    from: usize, // index of its first element in the list
}

impl Rectangle {
    /// Returns its elements of the list.
    pub(crate) fn of<D: Device, B>(&self, list: Strided<D, B>) -> Strided<D, B> {
        let [rows, cols] = self.shape;
        let room = list.rows() * list.cols();
        list.reshape(1, room).take_cols(self.from, rows * cols).reshape(rows, cols)
    }
}

/// Splits `numbers` consecutive elements of a matrix, row by row from element `from` on, into rectangles: the
/// end of a row, whole rows, the beginning of a row.
pub(crate) fn rectangles(
    numbers: usize,
    from: usize,
    [rows, cols]: [usize; 2],
) -> impl Iterator<Item = Rectangle> {
    let end = (from + numbers).min(rows * cols).max(from);
    let first = from.next_multiple_of(cols).min(end);
    let last = (end / cols * cols).max(first);
    [[from, first], [first, last], [last, end]].into_iter().filter(|[a, b]| a < b).map(move |[a, b]| {
        let wide = (b - a).min(cols);
        Rectangle { begin: [a / cols, a % cols], shape: [(b - a) / wide, wide], from: a - from }
    })
}
