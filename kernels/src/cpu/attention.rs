//! Attention by tiles with an online softmax. The products read strided heads in place; only a strip of
//! `TILE` scores exists at a time.
//!
//! Source: Dao et al., "FlashAttention", Algorithm 1, arXiv:2205.14135; Milakov, Gimelshein, "Online
//! normalizer calculation for softmax", arXiv:1805.02867.
use super::attention_tile::{Cap, Carve, Tile, Widened, keys_of, most_keys, pack, serves_many, tiles};
use super::matrices::{In, Out};
use super::panels::{Panels, Right};
use super::scalar::CpuScalar;
use super::simd::{fetch, stab, sum};
use crate::indexed::entries;
use crate::mask::VisibleKeys;
use crate::{Attend, Heads, Qkv, RunningSoftmax, Span, Write};
use tensor::{Cpu, Scalar};

/// Rows of tiles: where results are written, and where a running softmax is read.
pub(super) enum TileRows<'a, S: Scalar> {
    /// All keys of a query are given: its output, and its log-sum-exp.
    Whole(Out<'a, S>, Out<'a, S::Wide>),
    /// Other keys came before or will come.
    Carried(RunningSoftmax<'a, Cpu<S::Wide>>),
}

impl<S: Scalar> TileRows<'_, S> {
    /// Reads the state of row `i` of the tile: copies its output to `acc`, and returns its stabiliser and
    /// sum.
    #[inline(always)]
    fn begin(&mut self, tile: &Tile, i: usize, acc: &mut [S::Wide]) -> [S::Wide; 2] {
        let (row, head, cols) = (tile.row + i, tile.head, tile.outputs());
        match self {
            TileRows::Carried(run) if run.max.read().at(row, head) != S::Wide::NEG_INF => {
                acc.copy_from_slice(&run.out.row(row)[cols]);
                [run.max.row(row)[head], run.sum.row(row)[head]]
            }
            _ => {
                acc.fill(S::Wide::ZERO);
                [S::Wide::NEG_INF, S::Wide::ZERO]
            }
        }
    }
    /// Writes the state of row `i` of the tile.
    #[inline(always)]
    fn end(&mut self, tile: &Tile, i: usize, acc: &[S::Wide], [m, l]: [S::Wide; 2]) {
        let (row, head, cols) = (tile.row + i, tile.head, tile.outputs());
        match self {
            TileRows::Carried(run) => {
                run.out.row(row)[cols].copy_from_slice(acc);
                (run.max.row(row)[head], run.sum.row(row)[head]) = (m, l);
            }
            TileRows::Whole(o, lse) => {
                divide(&mut o.row(row)[cols], acc, l);
                lse.row(row)[head] = S::Wide::lse(m, l);
            }
        }
    }
}

/// o = acc / sum.
#[inline(always)]
fn divide<S: Scalar>(o: &mut [S], acc: &[S::Wide], sum: S::Wide) {
    let share = sum.inv();
    for (o, &a) in o.iter_mut().zip(acc) {
        *o = S::narrow(a * share);
    }
}

/// Compiles [`take_body`] once for each vector width, though two kernels call it.
#[inline(never)]
pub(super) fn take<S: CpuScalar<Wide: CpuScalar>>(
    attend: &Attend,
    spans: &[u32],
    qkv: &Qkv<Cpu<S>>,
    rows: TileRows<S>,
    scratch: Out<S::Wide>,
) {
    super::wide_for::<S>(
        #[inline(always)]
        || take_body(attend, spans, qkv, rows, scratch),
    );
}

/// Updates rows with the tiles of keys of these spans.
#[inline(always)]
fn take_body<S: CpuScalar<Wide: CpuScalar>>(
    attend: &Attend,
    spans: &[u32],
    qkv: &Qkv<Cpu<S>>,
    mut rows: TileRows<S>,
    scratch: Out<S::Wide>,
) {
    let Heads { keys: of_heads, dim, value, .. } = attend.heads;
    let ([tile_q, tile_k], mut carve) = (S::Wide::TILE, Carve::new(scratch));
    let (scale, cap) = (attend.scores.scale(), Cap::<S::Wide>::of(attend));
    let [mut qs, mut acc] = [dim, value].map(|features| carve.take(tile_q, features));
    let mut held = [[S::Wide::NEG_INF, S::Wide::ZERO]; MOST_ROWS]; // each row's stabiliser and sum
    let most = most_keys(spans);
    let mut strip = carve.take(tile_q, tile_k.min(most));
    let [mut of_keys, mut of_values] =
        [Panels::<S::Wide>::len(dim, most), Panels::<S::Wide>::len(most, value)].map(|n| carve.take(1, n));
    let [mut keys, mut values] = [dim, value].map(|of| Widened::<S>::new(&mut carve, most, of));
    for (span, h) in entries(spans).flat_map(|s| (0..of_heads).map(move |h| (s, h))) {
        let span: &Span = &span;
        let many = serves_many::<S::Wide>(attend, span);
        if h == 0 && !many {
            // One head after the other is read in short pieces of each row, which memory gives slowly: rows
            // are prefetched whole.
            fetch(qkv.k.take_rows(span.key.row, span.key.len));
            fetch(qkv.v.take_rows(span.key.row, span.key.len));
        }
        let kt = Right::new(&mut of_keys, keys.of(keys_of(qkv.k, span, attend.heads.key(h))).t(), many);
        let vs = Right::new(&mut of_values, values.of(keys_of(qkv.v, span, attend.heads.output(h))), many);
        for tile in tiles::<S::Wide>(attend, span, h) {
            let Tile { n, .. } = tile;
            pack(&mut qs, tile.of(qkv.q, attend.heads.key(tile.head)), scale);
            for i in 0..n {
                held[i] = rows.begin(&tile, i, acc.row(i));
            }
            for block in tile.blocks::<S::Wide>() {
                let keys = block.len();
                let scores = strip.again().take_rows(0, n).take_cols(0, keys);
                kt.take_cols(block.start, keys).times(scores, qs.read().take_rows(0, n), Write::Set);
                for i in 0..n {
                    let (p, seen, factors) =
                        (&mut strip.row(i)[..keys], tile.seen(i, &block), tile.factors(i, &block));
                    let [m, l] = &mut held[i];
                    if let Some(cap) = cap {
                        cap.take(p);
                    }
                    weigh(p, [m, l], acc.row(i), seen, factors);
                }
                let p = strip.read().take_rows(0, n).take_cols(0, keys);
                vs.take_rows(block.start, keys).times(acc.again().take_rows(0, n), p, Write::Add);
            }
            for i in 0..n {
                rows.end(&tile, i, acc.row(i), held[i]);
            }
        }
    }
}

/// Largest number of rows of a tile.
const MOST_ROWS: usize = 64;

/// Turns one row of scores into weights: visible keys count in the sum, keys that dropout keeps count in the
/// output.
#[inline(always)]
fn weigh<S: Scalar<Wide = S>>(
    p: &mut [S],
    [m, l]: [&mut S; 2],
    acc: &mut [S],
    seen: VisibleKeys,
    factors: Option<impl Fn(usize) -> S>,
) {
    if seen.is_empty() {
        return p.fill(S::ZERO);
    }
    seen.hide(p, S::NEG_INF); // whole rows keep the loops in vectors
    online(p, m, l, acc);
    if let Some(factor) = factors {
        for (j, p) in p.iter_mut().enumerate() {
            *p = *p * factor(j);
        }
    }
}

/// Takes one row of scores into the running (m, l, acc); the scores become weights.
#[inline(always)]
fn online<S: Scalar<Wide = S>>(p: &mut [S], m: &mut S, l: &mut S, acc: &mut [S]) {
    let to = S::stab(*m, stab(p));
    let shrink = S::exp_sub(*m, to);
    for p in p.iter_mut() {
        *p = S::exp_sub(*p, to);
    }
    *l = *l * shrink + sum([p], |[p]| p);
    *m = to;
    for a in acc {
        *a = *a * shrink;
    }
}

/// Merges the running softmax of other keys, `(out, max, sum)`, into one of the same queries.
#[inline(always)]
pub(super) fn merge<S: CpuScalar>(
    heads: Heads,
    mut run: RunningSoftmax<Cpu<S>>,
    (out, max, sum): (In<S>, In<S>, In<S>),
) {
    for (i, h) in (0..out.rows()).flat_map(|i| (0..heads.queries).map(move |h| (i, h))) {
        let cols = heads.output(h);
        let (own, other) = (run.max.row(i)[h], max.row(i)[h]);
        if other == S::NEG_INF {
            continue;
        }
        let to = if own == S::NEG_INF { other } else { S::stab(own, other) };
        let [keep, add] = [own, other].map(|m| S::exp_sub(m, to));
        for (o, &x) in run.out.row(i)[cols.clone()].iter_mut().zip(&out.row(i)[cols]) {
            *o = if own == S::NEG_INF { x } else { *o * keep + x * add };
        }
        let l = &mut run.sum.row(i)[h];
        *l = if own == S::NEG_INF { sum.row(i)[h] } else { *l * keep + sum.row(i)[h] * add };
        run.max.row(i)[h] = to;
    }
}

#[inline(always)]
pub(super) fn finish<S: CpuScalar>(heads: Heads, mut o: Out<S>, mut run: RunningSoftmax<Cpu<S::Wide>>) {
    for i in 0..o.rows() {
        for h in 0..heads.queries {
            let cols = heads.output(h);
            let l = run.sum.row(i)[h];
            divide(&mut o.row(i)[cols.clone()], &run.out.row(i)[cols], l);
            run.max.row(i)[h] = S::Wide::lse(run.max.row(i)[h], l);
        }
    }
}
