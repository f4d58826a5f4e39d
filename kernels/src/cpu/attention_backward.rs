//! The gradient of attention by blocks: scores are computed again from the log-sum-exp that forward left.
//!
//! With P = softmax(S), M what dropout multiplies it by (1 without), δ = Σ o·do: dV = (P∘M)ᵀ·dO,
//! dS = P ∘ (M∘(dO·Vᵀ) − δ), dQ = dS·K, dK = dSᵀ·Q.
//! Source: Dao, "FlashAttention-2", Algorithm 2, arXiv:2307.08691.
use super::CpuScalar;
use super::attention_tile::{Carve, Tile, keys_of, most_keys, pack, tiles};
use super::simd::dot;
use crate::kernels::{Attend, Heads, Qkv, Span, Write};
use std::ops::Range;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn delta<S: CpuScalar>(
    heads: Heads,
    mut delta: ViewMut<Cpu<S>>,
    o: View<Cpu<S>>,
    d_o: View<Cpu<S>>,
) {
    for i in 0..o.rows() {
        let (o, d_o) = (o.row(i), d_o.row(i));
        for (h, out) in delta.row(i).iter_mut().enumerate() {
            let cols = h * heads.dim..(h + 1) * heads.dim;
            *out = dot(&o[cols.clone()], &d_o[cols]);
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)] // as the kernel
pub(super) fn block<S: CpuScalar>(
    attend: &Attend,
    spans: &[Span],
    qkv: &Qkv<Cpu<S>>,
    (lse, delta): (View<Cpu<S>>, View<Cpu<S>>),
    d_o: View<Cpu<S>>,
    [mut dq, mut dk, mut dv]: [ViewMut<Cpu<S>>; 3],
    scratch: ViewMut<Cpu<S>>,
) {
    let (d, tile_k, scale) = (attend.heads.dim, S::TILE[1], S::inv_sqrt(attend.heads.dim));
    let mut work = Work::new(scratch, most_keys(spans), d);
    for (span, h) in spans.iter().flat_map(|s| (0..attend.heads.keys).map(move |h| (s, h))) {
        let (k, v) = (keys_of(qkv.k, span, h, d), keys_of(qkv.v, span, h, d));
        pack(&mut work.ks, k, scale);
        work.dks.again().take_rows(0, span.key.len).flat().fill(S::ZERO);
        work.dvs.again().take_rows(0, span.key.len).flat().fill(S::ZERO);
        for tile in tiles::<S>(attend, span, h) {
            pack(&mut work.qs, tile.of(qkv.q), scale);
            pack(&mut work.dos, tile.of(d_o), S::ONE);
            work.dqs.flat().fill(S::ZERO);
            for block in tile.blocks(tile_k) {
                work.block(&tile, &block, (k.t(), v.t()), (lse, delta));
            }
            let dq = dq.again().take_rows(tile.row, tile.n).take_cols(tile.head * d, d);
            add_rows(dq, work.dqs.read());
        }
        for (to, from) in [(&mut dk, &work.dks), (&mut dv, &work.dvs)] {
            add_rows(to.again().take_rows(span.key.row, span.key.len).take_cols(h * d, d), from.read());
        }
    }
}

/// Scratch: of one key head's rows, and of one tile's.
struct Work<'a, S: CpuScalar> {
    /// Keys, scaled.
    ks: ViewMut<'a, Cpu<S>>,
    dks: ViewMut<'a, Cpu<S>>,
    dvs: ViewMut<'a, Cpu<S>>,
    /// Queries, scaled.
    qs: ViewMut<'a, Cpu<S>>,
    dos: ViewMut<'a, Cpu<S>>,
    dqs: ViewMut<'a, Cpu<S>>,
    /// Scores, then weights.
    p: ViewMut<'a, Cpu<S>>,
    /// dO·Vᵀ, then the scores' gradient.
    dp: ViewMut<'a, Cpu<S>>,
}

impl<'a, S: CpuScalar> Work<'a, S> {
    fn new(scratch: ViewMut<'a, Cpu<S>>, keys: usize, d: usize) -> Self {
        let ([tile_q, tile_k], mut carve) = (S::TILE, Carve::new(scratch));
        let [ks, dks, dvs] = [(); 3].map(|()| carve.take(keys, d));
        let [qs, dos, dqs] = [(); 3].map(|()| carve.take(tile_q, d));
        let [p, dp] = [(); 2].map(|()| carve.take(tile_q, tile_k.min(keys)));
        Self { ks, dks, dvs, qs, dos, dqs, p, dp }
    }
    /// Adds what one tile and one block of keys give each other to dks, dvs and dqs.
    #[inline(always)]
    fn block(
        &mut self,
        tile: &Tile,
        block: &Range<usize>,
        (kt, vt): (View<Cpu<S>>, View<Cpu<S>>),
        (lse, delta): (View<Cpu<S>>, View<Cpu<S>>),
    ) {
        let (key, keys, n) = (block.start, block.len(), tile.n);
        let (qs, dos) = (self.qs.read().take_rows(0, n), self.dos.read().take_rows(0, n));
        for (t, a, b) in [(&mut self.p, qs, kt), (&mut self.dp, dos, vt)] {
            S::gemm(t.again().take_rows(0, n).take_cols(0, keys), a, b.take_cols(key, keys), Write::Set);
        }
        for i in 0..n {
            let (p, dp) = (&mut self.p.row(i)[..keys], &mut self.dp.row(i)[..keys]);
            tile.seen(i, block).hide(p, S::NEG_INF);
            let (lse, delta) = (lse.row(tile.row + i)[tile.head], delta.row(tile.row + i)[tile.head]);
            match tile.factors(i, block) {
                None => scores(p, dp, lse, delta),
                Some(factor) => thinned(p, dp, lse, delta, factor),
            }
        }
        let p = self.p.read().take_rows(0, n).take_cols(0, keys);
        let ds = self.dp.read().take_rows(0, n).take_cols(0, keys);
        S::gemm(self.dvs.again().take_rows(key, keys), p.t(), dos, Write::Add);
        S::gemm(self.dks.again().take_rows(key, keys), ds.t(), qs, Write::Add);
        S::gemm(self.dqs.again().take_rows(0, n), ds, self.ks.read().take_rows(key, keys), Write::Add);
    }
}

/// One row: scores become weights, and their gradient is made of dO·Vᵀ.
#[inline(always)]
fn scores<S: Scalar>(p: &mut [S], dp: &mut [S], lse: S, delta: S) {
    for p in p.iter_mut() {
        *p = S::exp_sub(*p, lse);
    }
    for (dp, &p) in dp.iter_mut().zip(&*p) {
        *dp = p * (*dp - delta);
    }
}

/// The same with dropout.
#[inline(always)]
fn thinned<S: Scalar>(p: &mut [S], dp: &mut [S], lse: S, delta: S, factor: impl Fn(usize) -> S) {
    for (j, (p, dp)) in p.iter_mut().zip(dp).enumerate() {
        let (weight, factor) = (S::exp_sub(*p, lse), factor(j));
        *dp = weight * (*dp * factor - delta);
        *p = weight * factor;
    }
}

#[inline(always)]
fn add_rows<S: Scalar>(mut to: ViewMut<Cpu<S>>, from: View<Cpu<S>>) {
    for i in 0..to.rows() {
        for (t, &f) in to.row(i).iter_mut().zip(from.row(i)) {
            *t += f;
        }
    }
}
