//! Heads of attention, and all arithmetic on them: where queries, keys, values and outputs lie in a row, and
//! which of them a rank has.
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Attention heads: `queries / keys` query heads share one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads; their number divides that of the query heads.
    pub keys: usize,
    /// Features of one head.
    pub dim: usize,
}

impl Heads {
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
        let first = self.k().end;
        first..first + self.keys * self.dim
    }
    /// Columns of the keys and values in a row `[Q | K | V]`: the rows `[K | V]` that a cache keeps.
    #[must_use]
    pub fn kv(self) -> Range<usize> {
        self.k().start..self.v().end
    }
    /// Columns of the queries and keys in a row `[Q | K | V]`: those that are normalised and rotated.
    #[must_use]
    pub fn turned(self) -> Range<usize> {
        0..self.k().end
    }
    /// Features of a row `[Q | K | V]`: `(queries + 2·keys)·dim`.
    #[must_use]
    pub fn row(self) -> usize {
        self.v().end
    }
    /// Features of a row `[O]`, the concatenated outputs of the heads: `queries·dim`.
    #[must_use]
    pub fn gathered(self) -> usize {
        self.queries * self.dim
    }
    /// Columns of a query head's output in a row `[O]`.
    #[inline(always)]
    #[must_use]
    pub fn output(self, head: usize) -> Range<usize> {
        head * self.dim..(head + 1) * self.dim
    }
    /// Returns the heads that each of `ranks` ranks has. With more ranks than KV heads, consecutive ranks
    /// have a copy of the same one.
    #[must_use]
    pub fn share(self, ranks: usize) -> Self {
        Self { queries: self.queries / ranks, keys: self.keys.div_ceil(ranks), ..self }
    }
    /// Columns in `[Q | K | V]` of the queries, keys and values that a rank of `ranks` has.
    #[must_use]
    pub fn columns_of(self, rank: usize, ranks: usize) -> [Range<usize>; 3] {
        let Self { queries, keys, dim } = self.share(ranks);
        let columns = |part: Range<usize>, first: usize, n: usize| {
            let first = part.start + first * dim;
            first..first + n * dim
        };
        let key = rank * self.keys / ranks;
        [
            columns(self.q(), rank * queries, queries),
            columns(self.k(), key, keys),
            columns(self.v(), key, keys),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: values that begin where keys do, a copy of another KV head, a rank that skips heads.
    #[test]
    fn a_row_is_queries_keys_and_values_and_ranks_share_it() {
        let heads = Heads { queries: 8, keys: 2, dim: 3 };
        assert_eq!([heads.q(), heads.k(), heads.v()], [0..24, 24..30, 30..36]);
        assert_eq!((heads.kv(), heads.turned(), heads.row(), heads.gathered()), (24..36, 0..30, 36, 24));
        assert_eq!(heads.output(2), 6..9);
        assert_eq!(heads.share(2), Heads { queries: 4, keys: 1, dim: 3 });
        assert_eq!(heads.share(4), Heads { queries: 2, keys: 1, dim: 3 });
        assert_eq!(heads.columns_of(1, 2), [12..24, 27..30, 33..36]);
        assert_eq!(heads.columns_of(1, 4), [6..12, 24..27, 30..33]);
        assert_eq!(heads.columns_of(2, 4), [12..18, 27..30, 33..36]);
    }
}
