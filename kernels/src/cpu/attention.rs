//! Attention by blocks with an online softmax. The products take strided heads as they lie; a strip of `TILE`
//! scores is all that ever exists.
//!
//! Source: Dao et al., "FlashAttention", Algorithm 1, arXiv:2205.14135; Milakov, Gimelshein, "Online normalizer
//! calculation for softmax", arXiv:1805.02867.
use super::CpuScalar;
use super::attention_tile::{Carve, Tile, keys_of, most_keys, pack, serves_many, tiles};
use super::panels::{Panels, Right};
use super::simd::{fetch, stab, sum};
use crate::kernels::{Attend, Heads, Qkv, Softmax, Span, Write};
use crate::sight::Seen;
use tensor::{Cpu, Scalar, ViewMut};

#[inline(always)]
pub(super) fn block<S: CpuScalar>(
    attend: &Attend,
    spans: &[Span],
    qkv: &Qkv<Cpu<S>>,
    mut run: Softmax<Cpu<S>>,
    scratch: ViewMut<Cpu<S>>,
) {
    let (d, [tile_q, tile_k], mut carve) = (attend.heads.dim, S::TILE, Carve::new(scratch));
    let (mut qs, mut acc, scale) = (carve.take(tile_q, d), carve.take(tile_q, d), S::inv_sqrt(d));
    let most = most_keys(spans);
    let mut strip = carve.take(tile_q, tile_k.min(most));
    let [mut of_keys, mut of_values] =
        [Panels::<S>::len(d, most), Panels::<S>::len(most, d)].map(|n| carve.take(1, n));
    for (span, h) in spans.iter().flat_map(|s| (0..attend.heads.keys).map(move |h| (s, h))) {
        let many = serves_many::<S>(attend, span);
        if h == 0 && !many {
            // One head after the other takes short pieces of each row, which memory gives slowly.
            fetch(qkv.k.take_rows(span.key.row, span.key.len));
            fetch(qkv.v.take_rows(span.key.row, span.key.len));
        }
        let kt = Right::new(&mut of_keys, keys_of(qkv.k, span, h, d).t(), many);
        let vs = Right::new(&mut of_values, keys_of(qkv.v, span, h, d), many);
        for tile in tiles::<S>(attend, span, h) {
            let Tile { head, n, row, .. } = tile;
            pack(&mut qs, tile.of(qkv.q), scale);
            load(&mut acc, &mut run, &tile, d);
            for block in tile.blocks::<S>() {
                let keys = block.len();
                let scores = strip.again().take_rows(0, n).take_cols(0, keys);
                kt.take_cols(block.start, keys).times(scores, qs.read().take_rows(0, n), Write::Set);
                for i in 0..n {
                    let (p, seen, factors) =
                        (&mut strip.row(i)[..keys], tile.seen(i, &block), tile.factors(i, &block));
                    let (m, l) = (&mut run.max.row(row + i)[head], &mut run.sum.row(row + i)[head]);
                    weigh(p, [m, l], acc.row(i), seen, factors);
                }
                let p = strip.read().take_rows(0, n).take_cols(0, keys);
                vs.take_rows(block.start, keys).times(acc.again().take_rows(0, n), p, Write::Add);
            }
            for i in 0..n {
                run.out.row(row + i)[head * d..(head + 1) * d].copy_from_slice(acc.row(i));
            }
        }
    }
}

/// Takes up what the tile's rows hold so far.
#[inline(always)]
fn load<S: Scalar>(acc: &mut ViewMut<Cpu<S>>, run: &mut Softmax<Cpu<S>>, tile: &Tile, d: usize) {
    for i in 0..tile.n {
        let fresh = run.max.row(tile.row + i)[tile.head] == S::NEG_INF; // saw no key yet: holds nothing
        let o = &run.out.row(tile.row + i)[tile.head * d..(tile.head + 1) * d];
        if fresh { acc.row(i).fill(S::ZERO) } else { acc.row(i).copy_from_slice(o) }
    }
}

/// One row of scores becomes weights: those in sight count in the sum, those that dropout leaves in the output.
#[inline(always)]
fn weigh<S: Scalar>(
    p: &mut [S],
    [m, l]: [&mut S; 2],
    acc: &mut [S],
    seen: Seen,
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

/// Takes one row of scores into the running (m, l, acc); they become weights.
#[inline(always)]
fn online<S: Scalar>(p: &mut [S], m: &mut S, l: &mut S, acc: &mut [S]) {
    let to = S::stab(*m, stab(p));
    let shrink = S::exp_sub(*m, to);
    for p in p.iter_mut() {
        *p = S::exp_sub(*p, to);
    }
    *l = *l * shrink + sum(p, |p| p);
    *m = to;
    for a in acc {
        *a = *a * shrink;
    }
}

#[inline(always)]
pub(super) fn finish<S: CpuScalar>(heads: Heads, mut run: Softmax<Cpu<S>>) {
    for i in 0..run.out.rows() {
        for h in 0..heads.queries {
            let (m, l) = (run.max.row(i)[h], run.sum.row(i)[h]);
            let share = l.inv();
            for o in &mut run.out.row(i)[h * heads.dim..(h + 1) * heads.dim] {
                *o = *o * share;
            }
            run.max.row(i)[h] = S::lse(m, l);
        }
    }
}
