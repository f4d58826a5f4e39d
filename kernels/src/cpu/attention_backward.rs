//! The gradient of attention by blocks: scores are computed again from the log-sum-exp that forward left.
//!
//! With P = softmax(S), δ = Σ o·do: dV = Pᵀ·dO, dS = P ∘ (dO·Vᵀ − δ), dQ = dS·K, dK = dSᵀ·Q.
//! Source: Dao, "FlashAttention-2", Algorithm 2, arXiv:2307.08691.
use super::CpuScalar;
use super::attention::{Carve, most_keys, pack, visible};
use super::simd::dot;
use crate::kernels::{Heads, Qkv, Span, Write};
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
    heads: Heads,
    spans: &[Span],
    qkv: &Qkv<Cpu<S>>,
    (lse, delta): (View<Cpu<S>>, View<Cpu<S>>),
    d_o: View<Cpu<S>>,
    [mut dq, mut dk, mut dv]: [ViewMut<Cpu<S>>; 3],
    scratch: ViewMut<Cpu<S>>,
) {
    let (d, fan, most) = (heads.dim, heads.queries / heads.keys, most_keys(spans));
    let ([tile_q, tile_k], mut carve, scale) = (S::TILE, Carve::new(scratch), S::inv_sqrt(d));
    let (mut ks, mut dks, mut dvs) = (carve.take(most, d), carve.take(most, d), carve.take(most, d));
    let (mut qs, mut dos, mut dqs) = (carve.take(tile_q, d), carve.take(tile_q, d), carve.take(tile_q, d));
    let (mut p, mut dp) = (carve.take(tile_q, tile_k.min(most)), carve.take(tile_q, tile_k.min(most)));
    for (span, h) in spans.iter().flat_map(|s| (0..heads.keys).map(move |h| (s, h))) {
        let tk = span.key.len;
        let kh = qkv.k.take_rows(span.key.row, tk).take_cols(h * d, d);
        let (kt, vt) = (kh.t(), qkv.v.take_rows(span.key.row, tk).take_cols(h * d, d).t());
        pack(&mut ks, kh, scale);
        dks.again().take_rows(0, tk).flat().fill(S::ZERO);
        dvs.again().take_rows(0, tk).flat().fill(S::ZERO);
        let tiles = |head| (0..span.query.len).step_by(tile_q).map(move |first| (head, first));
        for (head, first) in (h * fan..(h + 1) * fan).flat_map(tiles) {
            let (n, row) = (tile_q.min(span.query.len - first), span.query.row + first);
            pack(&mut qs, qkv.q.take_rows(row, n).take_cols(head * d, d), scale);
            pack(&mut dos, d_o.take_rows(row, n).take_cols(head * d, d), S::ONE);
            dqs.flat().fill(S::ZERO);
            for key in (0..visible(span, first + n - 1, tk)).step_by(tile_k) {
                let keys = tile_k.min(visible(span, first + n - 1, tk) - key);
                let (qs, dos) = (qs.read().take_rows(0, n), dos.read().take_rows(0, n));
                let tile = |t: &mut ViewMut<Cpu<S>>, b: View<Cpu<S>>, a: View<Cpu<S>>| {
                    let t = t.again().take_rows(0, n).take_cols(0, keys);
                    S::gemm(t, a, b.take_cols(key, keys), Write::Set);
                };
                tile(&mut p, kt, qs);
                tile(&mut dp, vt, dos);
                for i in 0..n {
                    let seen = visible(span, first + i, tk).saturating_sub(key).min(keys);
                    let (lse, delta) = (lse.row(row + i)[head], delta.row(row + i)[head]);
                    scores(&mut p.row(i)[..keys], &mut dp.row(i)[..keys], seen, lse, delta);
                }
                let (p, dp) = (p.read().take_rows(0, n), dp.read().take_rows(0, n));
                let (p, dp) = (p.take_cols(0, keys), dp.take_cols(0, keys));
                S::gemm(dvs.again().take_rows(key, keys), p.t(), dos, Write::Add);
                S::gemm(dks.again().take_rows(key, keys), dp.t(), qs, Write::Add);
                S::gemm(dqs.again().take_rows(0, n), dp, ks.read().take_rows(key, keys), Write::Add);
            }
            add_rows(dq.again().take_rows(row, n).take_cols(head * d, d), dqs.read());
        }
        let keys = |t: &mut ViewMut<Cpu<S>>, from: View<Cpu<S>>| {
            add_rows(t.again().take_rows(span.key.row, tk).take_cols(h * d, d), from);
        };
        keys(&mut dk, dks.read());
        keys(&mut dv, dvs.read());
    }
}

/// One row: scores become weights, and their gradient is made of dO·Vᵀ. Keys from `seen` on do not count.
#[inline(always)]
fn scores<S: Scalar>(p: &mut [S], dp: &mut [S], seen: usize, lse: S, delta: S) {
    p[seen..].fill(S::NEG_INF);
    for p in p.iter_mut() {
        *p = S::exp_sub(*p, lse);
    }
    for (dp, &p) in dp.iter_mut().zip(&*p) {
        *dp = p * (*dp - delta);
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
