//! Scratch and tiles of queries, for attention and its backward.
use super::elementwise::each;
use super::matrices::{In, Out};
use super::panels::Panels;
use super::scalar::CpuScalar;
use crate::indexed::entries;
use crate::mask::VisibleKeys;
use crate::{Attend, Heads, Span};
use std::ops::Range;
use tensor::{Dropout, Scalar, count};

const SCRATCH: &str = "the elements of attention's scratch";

/// Elements of scratch for one call, forward or backward.
pub(super) fn scratch_len<S: CpuScalar<Wide: CpuScalar>>(heads: Heads, keys: usize) -> usize {
    let [tile_q, tile_k] = S::Wide::TILE;
    let Heads { dim, value, .. } = heads;
    let numbers = |sizes: &[usize]| count::product(SCRATCH, sizes);
    let panels = Panels::<S::Wide>::len;
    let factors = [panels(keys, dim), panels(dim, keys), panels(value, keys)];
    let rows = [keys, 2 * tile_q, if S::NARROW { keys } else { 0 }]; // of keys' features
    let tiles = [
        numbers(&[rows.iter().sum(), dim]),
        numbers(&[keys + tile_q + rows[2], value]),
        2 * tile_q * tile_k.min(keys),
    ];
    count::sum(SCRATCH, factors.into_iter().chain(tiles))
}

/// Splits scratch into matrices.
pub(super) struct Carve<'a, S: Scalar>(Option<Out<'a, S>>);
impl<'a, S: Scalar> Carve<'a, S> {
    pub(super) fn new(scratch: Out<'a, S>) -> Self {
        Self(Some(scratch))
    }
    pub(super) fn take(&mut self, rows: usize, cols: usize) -> Out<'a, S> {
        let (now, rest) = self.0.take().expect("put back below").split_cols(rows * cols);
        self.0 = Some(rest);
        now.reshape(rows, cols)
    }
}

/// to = from · scale in the wide dtype, without gaps.
#[inline(always)]
pub(super) fn pack<S: Scalar>(to: &mut Out<S::Wide>, from: In<S>, scale: S::Wide) {
    each(to.again(), from, |to, from| *to = from.widen() * scale);
}

/// Keys and values of one head at a time in the wide dtype: read in place if they are wide, else copied to
/// memory for as many rows as the longest span has keys.
pub(super) struct Widened<'a, S: Scalar>(Out<'a, S::Wide>);

impl<'a, S: CpuScalar> Widened<'a, S> {
    pub(super) fn new(carve: &mut Carve<'a, S::Wide>, most: usize, d: usize) -> Self {
        Self(carve.take(if S::NARROW { most } else { 0 }, d))
    }
    #[inline(always)]
    pub(super) fn of<'v>(&'v mut self, x: In<'v, S>) -> In<'v, S::Wide> {
        if let Some(x) = S::as_wide(x) {
            return x;
        }
        pack(&mut self.0, x, S::Wide::ONE);
        self.0.read().take_rows(0, x.rows())
    }
}

/// Cap of scores, and its inverse.
#[derive(Clone, Copy)]
pub(super) struct Cap<S>([S; 2]);

impl<S: Scalar> Cap<S> {
    pub(super) fn of(attend: &Attend) -> Option<Self> {
        attend.scores.cap.map(|cap| Self([S::from_f64(cap), S::from_f64(cap).inv()]))
    }
    /// Caps scores.
    #[inline(always)]
    pub(super) fn take(self, scores: &mut [S]) {
        let [cap, inv] = self.0;
        for s in scores {
            *s = cap * (*s * inv).tanh();
        }
    }
    /// Returns the derivative at a capped score; of a hidden one, any number.
    #[inline(always)]
    pub(super) fn slope(self, capped: S) -> S {
        let t = if capped == S::NEG_INF { S::ONE } else { capped * self.0[1] };
        S::ONE - t * t
    }
}

/// Largest number of keys of any span.
pub(super) fn most_keys(spans: &[u32]) -> usize {
    entries(spans).map(|s: Span| s.key.len).max().unwrap_or(0)
}

/// Returns these columns of a span's keys.
#[inline(always)]
pub(super) fn keys_of<'v, S: Scalar>(x: In<'v, S>, span: &Span, columns: Range<usize>) -> In<'v, S> {
    x.take_rows(span.key.row, span.key.len).take_cols(columns.start, columns.len())
}

/// Queries of one head that are processed together.
pub(super) struct Tile<'a> {
    attend: &'a Attend,
    span: &'a Span,
    /// Head of the queries.
    pub(super) head: usize,
    /// Index in the span of the first query.
    first: usize,
    /// Number of queries.
    pub(super) n: usize,
    /// Row of the first query.
    pub(super) row: usize,
}

/// True if a KV head serves several tiles of queries, so that packing its keys and values pays.
pub(super) fn serves_many<S: CpuScalar>(attend: &Attend, span: &Span) -> bool {
    attend.heads.fan() * span.query.len.div_ceil(S::TILE[0]) > 1
}

/// Returns the tiles of all queries that KV head `h` serves.
#[inline(always)]
pub(super) fn tiles<'a, S: CpuScalar>(
    attend: &'a Attend,
    span: &'a Span,
    h: usize,
) -> impl Iterator<Item = Tile<'a>> {
    let (fan, most) = (attend.heads.fan(), S::TILE[0]);
    let tile = move |head, first| {
        let n = most.min(span.query.len - first);
        Tile { attend, span, head, first, n, row: span.query.row + first }
    };
    let of_head = move |head| (0..span.query.len).step_by(most).map(move |first| tile(head, first));
    (h * fan..(h + 1) * fan).flat_map(of_head)
}

impl Tile<'_> {
    /// Returns these columns of the queries' rows.
    #[inline(always)]
    pub(super) fn of<'v, S: Scalar>(&self, x: In<'v, S>, columns: Range<usize>) -> In<'v, S> {
        x.take_rows(self.row, self.n).take_cols(columns.start, columns.len())
    }
    /// Columns of this head's output.
    #[inline(always)]
    pub(super) fn outputs(&self) -> Range<usize> {
        self.attend.heads.output(self.head)
    }
    /// Returns the tiles of the span's keys that any of the queries sees.
    #[inline(always)]
    pub(super) fn blocks<S: CpuScalar>(&self) -> impl Iterator<Item = Range<usize>> {
        self.attend.scores.mask.blocks(self.span, self.first..self.first + self.n, [S::TILE[1], S::PANEL])
    }
    /// Returns the keys of a tile that query `i` of this tile sees.
    #[inline(always)]
    pub(super) fn seen(&self, i: usize, block: &Range<usize>) -> VisibleKeys {
        self.attend.scores.mask.seen(self.span, self.first + i).within(block)
    }
    /// Returns dropout's factors of the probabilities of query `i`, if there is dropout: for the `j`th key of
    /// a tile, 0 or 1/(1 − rate).
    #[inline(always)]
    pub(super) fn factors<S: Scalar>(&self, i: usize, block: &Range<usize>) -> Option<impl Fn(usize) -> S> {
        let Span { query, key } = *self.span;
        let (position, first_key) = (query.position + self.first + i, key.position + block.start);
        let head = self.attend.first + self.head;
        let factors = |dropout: Dropout| {
            let scale = dropout.scale();
            move |j| {
                let keep = dropout.keeps(query.sequence, position, Dropout::pair(head, first_key + j));
                if keep { scale } else { S::ZERO }
            }
        };
        self.attend.dropout.map(factors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::F61;

    /// Sizes for 5 keys and heads of 3 features, by hand: panels of the keys, 5 rows as wide as a panel is,
    /// and twice their transpose, 3 rows; two gradients of 5·3; three tiles of queries; two strips of scores.
    /// Kills: room that nobody needs, which price and run would agree on.
    #[test]
    fn scratch_takes_the_numbers_that_are_worked_out_by_hand() {
        let heads = Heads::new(4, 2, 3);
        // Panels of 3: 5·3 + 2·3·6; tiles of 2 queries and 3 keys.
        assert_eq!(scratch_len::<F61>(heads, 5), 15 + 36 + 30 + 3 * 2 * 3 + 2 * 2 * 3);
        // Panels of 16, tiles of 32 queries; 5 keys are less than a tile.
        assert_eq!(scratch_len::<f32>(heads, 5), 80 + 96 + 30 + 3 * 32 * 3 + 2 * 32 * 5);
        assert_eq!(scratch_len::<f32>(heads, 300), 4800 + 2 * 3 * 304 + 1800 + 3 * 32 * 3 + 2 * 32 * 256);
    }
}
