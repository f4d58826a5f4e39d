//! Heads of attention, and all arithmetic on them: where queries, keys, values and outputs lie in a row, and
//! which of them a rank has.
//!
//! ```text
//! row [Q | K | V]   queries·dim | keys·dim | keys·value       row [O]   queries·value
//! a query or key head    plain features, then those that are rotated, then the rest
//! ```
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Attention heads: `queries / keys` query heads share one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "HeadSizes", into = "HeadSizes")]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads; their number divides that of the query heads.
    pub keys: usize,
    /// Features of a query head and of a key head.
    pub dim: usize,
    /// Features of a value head, and of a query head's output.
    pub value: usize,
    /// Features of a query or key head before those that are rotated.
    pub plain: usize,
    /// Features of a query or key head that are rotated; an odd last one stays.
    pub rotated: usize,
    /// True if rotated features are paired with their neighbours, false if those of one half with the
    /// other's.
    pub neighbours: bool,
    /// True if there is one KV head whose value is the first features of its key.
    pub within: bool,
}

/// Sizes of heads as JSON has them: those that follow from `dim` are left out.
#[derive(Serialize, Deserialize)]
struct HeadSizes {
    queries: usize,
    keys: usize,
    dim: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotated: Option<[usize; 2]>,
    #[serde(default, skip_serializing_if = "crate::shape::is_usual")]
    neighbours: bool,
}

impl From<HeadSizes> for Heads {
    fn from(of: HeadSizes) -> Self {
        let [plain, rotated] = of.rotated.unwrap_or([0, of.dim]);
        let heads = Self::new(of.queries, of.keys, of.dim);
        Self { value: of.value.unwrap_or(of.dim), plain, rotated, neighbours: of.neighbours, ..heads }
    }
}
impl From<Heads> for HeadSizes {
    fn from(heads: Heads) -> Self {
        let Heads { queries, keys, dim, value, plain, rotated, neighbours, .. } = heads;
        let other = (plain, rotated) != (0, dim);
        let rotated = other.then_some([plain, rotated]);
        Self { queries, keys, dim, value: (value != dim).then_some(value), rotated, neighbours }
    }
}

impl Heads {
    /// Returns heads that all have `dim` features, of which all are rotated.
    #[must_use]
    pub const fn new(queries: usize, keys: usize, dim: usize) -> Self {
        Self { queries, keys, dim, value: dim, plain: 0, rotated: dim, neighbours: false, within: false }
    }
    /// Query heads of a KV head.
    #[inline(always)]
    #[must_use]
    pub fn fan(self) -> usize {
        self.queries / self.keys
    }
    /// Columns of the queries in a row `[Q | K | V]`, and the first columns of the row.
    #[must_use]
    pub fn q(self) -> Range<usize> {
        0..self.queries * self.dim
    }
    /// Columns of the keys in a row `[Q | K | V]`.
    #[must_use]
    pub fn k(self) -> Range<usize> {
        let first = self.q().end;
        first..first + self.keys * self.dim
    }
    /// Columns of the values in a row `[Q | K | V]`.
    #[must_use]
    pub fn v(self) -> Range<usize> {
        let first = if self.within { self.k().start } else { self.k().end };
        first..first + self.keys * self.value
    }
    /// Columns of the keys and values in a row `[Q | K | V]`: the rows `[K | V]` that a cache keeps.
    #[must_use]
    pub fn kv(self) -> Range<usize> {
        self.k().start..self.v().end.max(self.k().end)
    }
    /// Columns of the queries and keys in a row `[Q | K | V]`: heads that are normalised and rotated.
    #[must_use]
    pub fn turned(self) -> Range<usize> {
        0..self.k().end
    }
    /// Features of a row `[Q | K | V]`: `(queries + keys)·dim + keys·value`, or without the last if values
    /// are within keys.
    #[must_use]
    pub fn row(self) -> usize {
        self.kv().end
    }
    /// Features of a row `[O]`, the concatenated outputs of the heads: `queries·value`.
    #[must_use]
    pub fn gathered(self) -> usize {
        self.queries * self.value
    }
    /// Columns of a query head in a row `[Q]`, or of a key head in a row `[K]`.
    #[inline(always)]
    #[must_use]
    pub fn key(self, head: usize) -> Range<usize> {
        head * self.dim..(head + 1) * self.dim
    }
    /// Columns of a value head in a row `[V]`, or of a query head's output in a row `[O]`.
    #[inline(always)]
    #[must_use]
    pub fn output(self, head: usize) -> Range<usize> {
        head * self.value..(head + 1) * self.value
    }
    /// Columns of a running softmax `[O | max | sum]`: the outputs, and two numbers of each query head.
    #[must_use]
    pub fn running(self) -> [Range<usize>; 3] {
        let [o, n] = [self.gathered(), self.queries];
        [0..o, o..o + n, o + n..o + 2 * n]
    }
    /// Returns the same sizes with `n` times the features.
    #[must_use]
    pub fn widened(self, n: usize) -> Self {
        let Self { dim, value, plain, rotated, .. } = self;
        Self { dim: dim * n, value: value * n, plain: plain * n, rotated: rotated * n, ..self }
    }
    /// Returns the heads that each of `ranks` ranks has. With more ranks than KV heads, consecutive ranks
    /// have a copy of the same one.
    #[must_use]
    pub fn share(self, ranks: usize) -> Self {
        Self { queries: self.queries / ranks, keys: self.keys.div_ceil(ranks), ..self }
    }
    /// Returns those of these heads that have `columns` columns of a row `[K]`.
    #[must_use]
    pub fn of_keys(self, columns: usize) -> Self {
        let keys = columns / self.dim;
        Self { queries: self.fan() * keys, keys, ..self }
    }
    /// Returns the heads whose keys and values are read from a latent of this many features, as they are
    /// kept: one KV head, the latent and then the features of a key that all heads share.
    #[must_use]
    pub fn compressed(self, latent: usize) -> Self {
        let Self { queries, dim, plain, .. } = self;
        Self {
            queries,
            keys: 1,
            dim: latent + dim - plain,
            value: latent,
            plain: latent,
            within: true,
            ..self
        }
    }
    /// Columns in `[Q | K | V]` of the queries, keys and values that a rank of `ranks` has.
    #[must_use]
    pub fn columns_of(self, rank: usize, ranks: usize) -> [Range<usize>; 3] {
        let Self { queries, keys, dim, value, .. } = self.share(ranks);
        let columns = |part: Range<usize>, first: usize, n: usize, size: usize| {
            let first = part.start + first * size;
            first..first + n * size
        };
        let key = rank * self.keys / ranks;
        [
            columns(self.q(), rank * queries, queries, dim),
            columns(self.k(), key, keys, dim),
            if self.within { 0..0 } else { columns(self.v(), key, keys, value) },
        ]
    }
    /// Columns in `[O]` of the heads that a rank of `ranks` has.
    #[must_use]
    pub fn outputs_of(self, rank: usize, ranks: usize) -> Range<usize> {
        let n = self.share(ranks).gathered();
        rank * n..(rank + 1) * n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: values that begin where keys do or are as wide, a copy of another KV head, a rank that skips
    /// heads.
    #[test]
    fn a_row_is_queries_keys_and_values_and_ranks_share_it() {
        let heads = Heads { value: 5, ..Heads::new(8, 2, 3) };
        assert_eq!([heads.q(), heads.k(), heads.v()], [0..24, 24..30, 30..40]);
        assert_eq!((heads.kv(), heads.turned(), heads.row(), heads.gathered()), (24..40, 0..30, 40, 40));
        assert_eq!([heads.key(2), heads.output(2)], [6..9, 10..15]);
        assert_eq!(heads.running(), [0..40, 40..48, 48..56]);
        assert_eq!(heads.share(2), Heads { queries: 4, keys: 1, ..heads });
        assert_eq!(heads.share(4), Heads { queries: 2, keys: 1, ..heads });
        assert_eq!(heads.of_keys(3), heads.share(2));
        assert_eq!(heads.columns_of(1, 2), [12..24, 27..30, 35..40]);
        assert_eq!(heads.columns_of(1, 4), [6..12, 24..27, 30..35]);
        assert_eq!(heads.columns_of(2, 4), [12..18, 27..30, 35..40]);
        assert_eq!(heads.outputs_of(1, 4), 10..20);
        let kept = Heads { plain: 1, rotated: 2, ..Heads::new(8, 8, 3) }.compressed(4);
        assert_eq!((kept.dim, kept.value, kept.plain, kept.rotated), (6, 4, 4, 2));
        assert_eq!([kept.q(), kept.k(), kept.v(), kept.kv()], [0..48, 48..54, 48..52, 48..54]);
        assert_eq!((kept.row(), kept.columns_of(1, 2)), (54, [24..48, 48..54, 0..0]));
    }

    /// Kills: sizes of files of other heads that are lost, or that files of equal ones get.
    #[test]
    fn files_hold_the_sizes_that_differ() {
        let equal = Heads::new(8, 2, 3);
        let other = Heads { value: 5, plain: 1, rotated: 2, neighbours: true, ..equal };
        for (heads, text) in [
            (equal, r#"{"queries":8,"keys":2,"dim":3}"#),
            (other, r#"{"queries":8,"keys":2,"dim":3,"value":5,"rotated":[1,2],"neighbours":true}"#),
        ] {
            assert_eq!(serde_json::to_string(&heads).unwrap(), text);
            assert_eq!(serde_json::from_str::<Heads>(text).unwrap(), heads);
        }
        assert_eq!(equal.widened(2), Heads::new(8, 2, 6));
        assert_eq!(other.widened(2), Heads { dim: 6, value: 10, plain: 2, rotated: 4, ..other });
    }
}
