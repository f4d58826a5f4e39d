//! The gradient of attention by tiles: scores are recomputed from the log-sum-exp that forward saved.
//!
//! With P = softmax(S), M the factors of dropout (1 without), δ = Σ o·do: dV = (P∘M)ᵀ·dO,
//! dS = P ∘ (M∘(dO·Vᵀ) − δ), dQ = dS·K, dK = dSᵀ·Q.
//! Source: Dao, "FlashAttention-2", Algorithm 2, arXiv:2307.08691.
use super::attention_tile::{Cap, Carve, Tile, Widened, keys_of, most_keys, pack, serves_many, tiles};
use super::elementwise::each;
use super::matrices::{In, Out};
use super::panels::{Panels, Right};
use super::scalar::CpuScalar;
use super::simd::dot;
use crate::indexed::entries;
use crate::{Attend, Heads, Qkv, Span, Write};
use std::ops::Range;
use tensor::{Cpu, Scalar};

#[inline(always)]
pub(super) fn delta<S: CpuScalar>(heads: Heads, mut delta: Out<S::Wide>, o: In<S>, d_o: In<S>) {
    for i in 0..o.rows() {
        let [o, d_o] = [o, d_o].map(|x| x.row(i));
        for (h, out) in delta.row(i).iter_mut().enumerate() {
            let cols = heads.output(h);
            *out = dot(&o[cols.clone()], &d_o[cols]);
        }
    }
}

#[inline(always)]
pub(super) fn sinks<S: CpuScalar>(
    mut dsinks: Out<S::Wide>,
    sinks: In<S>,
    lse: In<S::Wide>,
    delta: In<S::Wide>,
) {
    for (h, (to, sink)) in dsinks.row(0).iter_mut().zip(sinks.row(0)).enumerate() {
        for i in 0..lse.rows() {
            *to = *to - S::Wide::exp_sub(sink.widen(), lse.row(i)[h]) * delta.row(i)[h];
        }
    }
}

/// Log-sum-exp and δ of each query.
type Saved<'a, S> = (In<'a, <S as Scalar>::Wide>, In<'a, <S as Scalar>::Wide>);

/// Adds to gradients of dtype `T`: that of the queries, or the wide one.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // as the kernel
pub(super) fn spans<S: CpuScalar<Wide: CpuScalar>, T: Scalar<Wide = S::Wide>>(
    attend: &Attend,
    spans: &[u32],
    qkv: &Qkv<Cpu<S>>,
    (lse, delta): Saved<S>,
    d_o: In<S>,
    [mut dq, mut dk, mut dv]: [Out<T>; 3],
    scratch: Out<S::Wide>,
) {
    let heads @ Heads { dim, value, .. } = attend.heads;
    let scale: S::Wide = attend.scores.scale();
    let (most, mut carve) = (most_keys(spans), Carve::new(scratch));
    let [mut of_keys, mut of_turned, mut of_values] =
        [(most, dim), (dim, most), (value, most)].map(|(k, n)| carve.take(1, Panels::<S::Wide>::len(k, n)));
    let [mut keys, mut values] = [dim, value].map(|of| Widened::<S>::new(&mut carve, most, of));
    let mut work = TileScratch::new(carve, most, attend);
    for (span, h) in entries(spans).flat_map(|s| (0..heads.keys).map(move |h| (s, h))) {
        let span: &Span = &span;
        let (of_k, of_v) = (heads.key(h), heads.output(h));
        let k = keys.of(keys_of(qkv.k, span, of_k.clone()));
        let v = values.of(keys_of(qkv.v, span, of_v.clone()));
        let many = serves_many::<S::Wide>(attend, span);
        let [k, kt, vt] = [(&mut of_keys, k), (&mut of_turned, k.t()), (&mut of_values, v.t())]
            .map(|(memory, factor)| Right::new(memory, factor, many));
        work.dks.again().take_rows(0, span.key.len).flat().fill(S::Wide::ZERO);
        work.dvs.again().take_rows(0, span.key.len).flat().fill(S::Wide::ZERO);
        for tile in tiles::<S::Wide>(attend, span, h) {
            let of_q = heads.key(tile.head);
            pack(&mut work.qs, tile.of(qkv.q, of_q.clone()), scale);
            pack(&mut work.dos, tile.of(d_o, tile.outputs()), S::Wide::ONE);
            work.dqs.flat().fill(S::Wide::ZERO);
            for block in tile.blocks::<S::Wide>() {
                work.block(&tile, &block, [&k, &kt, &vt], (lse, delta));
            }
            let dq = dq.again().take_rows(tile.row, tile.n).take_cols(of_q.start, of_q.len());
            add_rows(dq, work.dqs.read(), scale);
        }
        for (to, from, of) in [(&mut dk, &work.dks, of_k), (&mut dv, &work.dvs, of_v)] {
            let target = to.again().take_rows(span.key.row, span.key.len).take_cols(of.start, of.len());
            add_rows(target, from.read(), S::Wide::ONE);
        }
    }
}

/// Scratch for one KV head's gradients and for one tile.
struct TileScratch<'a, S: CpuScalar> {
    dks: Out<'a, S>,
    dvs: Out<'a, S>,
    /// Scaled queries.
    qs: Out<'a, S>,
    dos: Out<'a, S>,
    /// Gradient of the queries, not yet scaled.
    dqs: Out<'a, S>,
    /// Scores, then weights.
    p: Out<'a, S>,
    /// dO·Vᵀ, then the gradient of the scores.
    dp: Out<'a, S>,
    cap: Option<Cap<S>>,
}

impl<'a, S: CpuScalar> TileScratch<'a, S> {
    fn new(mut carve: Carve<'a, S>, keys: usize, attend: &Attend) -> Self {
        let ([tile_q, tile_k], Heads { dim, value, .. }) = (S::TILE, attend.heads);
        let [dks, dvs] = [dim, value].map(|of| carve.take(keys, of));
        let [qs, dos, dqs] = [dim, value, dim].map(|of| carve.take(tile_q, of));
        let [p, dp] = [(); 2].map(|()| carve.take(tile_q, tile_k.min(keys)));
        Self { dks, dvs, qs, dos, dqs, p, dp, cap: Cap::of(attend) }
    }
    /// Adds the gradients of one tile of queries and one tile of keys to dks, dvs and dqs.
    #[inline(always)]
    fn block(
        &mut self,
        tile: &Tile,
        block: &Range<usize>,
        [k, kt, vt]: [&Right<S>; 3],
        (lse, delta): (In<S>, In<S>),
    ) {
        let (key, keys, n) = (block.start, block.len(), tile.n);
        let [qs, dos] = [&self.qs, &self.dos].map(|tile| tile.read().take_rows(0, n));
        for (t, a, b) in [(&mut self.p, qs, kt), (&mut self.dp, dos, vt)] {
            b.take_cols(key, keys).times(t.again().take_rows(0, n).take_cols(0, keys), a, Write::Set);
        }
        for i in 0..n {
            let [p, dp] = [&mut self.p, &mut self.dp].map(|weights| &mut weights.row(i)[..keys]);
            let cap = self.cap;
            if let Some(cap) = cap {
                cap.take(p);
            }
            tile.seen(i, block).hide(p, S::NEG_INF);
            let [lse, delta] = [lse, delta].map(|of_rows| of_rows.row(tile.row + i)[tile.head]);
            match (tile.factors(i, block), cap) {
                (None, None) => scores(p, dp, lse, delta),
                (None, cap) => general(p, dp, lse, delta, |_| S::ONE, cap),
                (Some(factor), cap) => general(p, dp, lse, delta, factor, cap),
            }
        }
        let p = self.p.read().take_rows(0, n).take_cols(0, keys);
        let ds = self.dp.read().take_rows(0, n).take_cols(0, keys);
        S::gemm(self.dvs.again().take_rows(key, keys), p.t(), dos, Write::Add);
        S::gemm(self.dks.again().take_rows(key, keys), ds.t(), qs, Write::Add);
        k.take_rows(key, keys).times(self.dqs.again().take_rows(0, n), ds, Write::Add);
    }
}

/// Turns one row of scores into weights, and dO·Vᵀ into their gradient.
#[inline(always)]
fn scores<S: Scalar>(p: &mut [S], dp: &mut [S], lse: S, delta: S) {
    for p in p.iter_mut() {
        *p = S::exp_sub(*p, lse);
    }
    for (dp, &p) in dp.iter_mut().zip(&*p) {
        *dp = p * (*dp - delta);
    }
}

/// Does the same as [`scores`], with dropout or a cap.
#[inline(always)]
fn general<S: Scalar>(
    p: &mut [S],
    dp: &mut [S],
    lse: S,
    delta: S,
    factor: impl Fn(usize) -> S,
    cap: Option<Cap<S>>,
) {
    for (j, (p, dp)) in p.iter_mut().zip(dp).enumerate() {
        let (weight, factor) = (S::exp_sub(*p, lse), factor(j));
        let slope = cap.map_or(S::ONE, |cap| cap.slope(*p));
        *dp = weight * (*dp * factor - delta) * slope;
        *p = weight * factor;
    }
}

#[inline(always)]
fn add_rows<S: Scalar>(to: Out<S>, from: In<S::Wide>, scale: S::Wide) {
    let from = from.take_rows(0, to.rows());
    each(to, from, |to, from| *to = S::narrow(to.widen() + from * scale));
}
