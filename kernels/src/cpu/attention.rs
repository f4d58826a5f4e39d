//! Causal attention by blocks with an online softmax. The products take strided heads as they lie; a strip of
//! `TILE` scores is all that ever exists.
//!
//! Source: Dao et al., "FlashAttention", Algorithm 1, arXiv:2205.14135; Milakov, Gimelshein, "Online normalizer
//! calculation for softmax", arXiv:1805.02867.
use super::CpuScalar;
use super::simd::{stab, sum};
use crate::kernels::{Heads, Qkv, Softmax, Span, Write};
use tensor::{Cpu, Scalar, View, ViewMut};

/// Numbers of scratch for one call, forward or backward.
pub(super) fn scratch_len<S: CpuScalar>(heads: Heads, keys: usize) -> usize {
    let [tile_q, tile_k] = S::TILE;
    3 * keys * heads.dim + 3 * tile_q * heads.dim + 2 * tile_q * tile_k.min(keys)
}

/// Cuts scratch into matrices.
pub(super) struct Carve<'a, S: Scalar>(Option<ViewMut<'a, Cpu<S>>>);
impl<'a, S: Scalar> Carve<'a, S> {
    pub(super) fn new(scratch: ViewMut<'a, Cpu<S>>) -> Self {
        Self(Some(scratch))
    }
    pub(super) fn take(&mut self, rows: usize, cols: usize) -> ViewMut<'a, Cpu<S>> {
        let (now, rest) = self.0.take().expect("put back below").split_cols(rows * cols);
        self.0 = Some(rest);
        now.reshape(rows, cols)
    }
}

/// to = from · scale, gaps closed.
#[inline(always)]
pub(super) fn pack<S: Scalar>(to: &mut ViewMut<Cpu<S>>, from: View<Cpu<S>>, scale: S) {
    for i in 0..from.rows() {
        for (t, &f) in to.row(i).iter_mut().zip(from.row(i)) {
            *t = f * scale;
        }
    }
}

/// Keys of `0..keys` that the span's query `i` sees.
#[inline(always)]
pub(super) fn visible(span: &Span, i: usize, keys: usize) -> usize {
    (span.query.position + i + 1).saturating_sub(span.key.position).min(keys)
}

/// The most keys of any span.
pub(super) fn most_keys(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.key.len).max().unwrap_or(0)
}

#[inline(always)]
pub(super) fn block<S: CpuScalar>(
    heads: Heads,
    spans: &[Span],
    qkv: &Qkv<Cpu<S>>,
    mut run: Softmax<Cpu<S>>,
    scratch: ViewMut<Cpu<S>>,
) {
    let (d, fan) = (heads.dim, heads.queries / heads.keys);
    let ([tile_q, tile_k], mut carve, scale) = (S::TILE, Carve::new(scratch), S::inv_sqrt(d));
    let (mut qs, mut acc) = (carve.take(tile_q, d), carve.take(tile_q, d));
    let mut strip = carve.take(tile_q, tile_k.min(most_keys(spans)));
    for (span, h) in spans.iter().flat_map(|s| (0..heads.keys).map(move |h| (s, h))) {
        let tk = span.key.len;
        let kt = qkv.k.take_rows(span.key.row, tk).take_cols(h * d, d).t();
        let vs = qkv.v.take_rows(span.key.row, tk).take_cols(h * d, d);
        let tiles = |head| (0..span.query.len).step_by(tile_q).map(move |first| (head, first));
        for (head, first) in (h * fan..(h + 1) * fan).flat_map(tiles) {
            let (n, row) = (tile_q.min(span.query.len - first), span.query.row + first);
            pack(&mut qs, qkv.q.take_rows(row, n).take_cols(head * d, d), scale);
            for i in 0..n {
                let fresh = run.max.row(row + i)[head] == S::NEG_INF; // saw no key yet: holds nothing
                let o = &run.out.row(row + i)[head * d..(head + 1) * d];
                if fresh { acc.row(i).fill(S::ZERO) } else { acc.row(i).copy_from_slice(o) }
            }
            for key in (0..visible(span, first + n - 1, tk)).step_by(tile_k) {
                let keys = tile_k.min(visible(span, first + n - 1, tk) - key);
                let scores = strip.again().take_rows(0, n).take_cols(0, keys);
                S::gemm(scores, qs.read().take_rows(0, n), kt.take_cols(key, keys), Write::Set);
                for i in 0..n {
                    let seen = visible(span, first + i, tk).saturating_sub(key).min(keys);
                    let p = &mut strip.row(i)[..keys];
                    if seen == 0 {
                        p.fill(S::ZERO);
                        continue;
                    }
                    let (m, l) = (&mut run.max.row(row + i)[head], &mut run.sum.row(row + i)[head]);
                    online(p, seen, m, l, acc.row(i));
                }
                let p = strip.read().take_rows(0, n).take_cols(0, keys);
                S::gemm(acc.again().take_rows(0, n), p, vs.take_rows(key, keys), Write::Add);
            }
            for i in 0..n {
                run.out.row(row + i)[head * d..(head + 1) * d].copy_from_slice(acc.row(i));
            }
        }
    }
}

/// Takes one row of scores, of which the first `seen` count, into the running (m, l, acc); they become weights.
#[inline(always)]
fn online<S: Scalar>(p: &mut [S], seen: usize, m: &mut S, l: &mut S, acc: &mut [S]) {
    p[seen..].fill(S::NEG_INF); // whole rows keep the loops in vectors
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

#[cfg(test)]
mod tests {
    use crate::{Causal, Heads, Kernels, Qkv, Softmax, Span};
    use tensor::{Category, Cpu, Real, Tensor};

    /// Outputs, and the gradient of Σ out, of one head whose scores go to ±200, over several tiles of keys.
    fn attend<S: crate::CpuScalar>() -> Vec<S> {
        const T: usize = 300;
        const HEADS: Heads = Heads { queries: 1, keys: 1, dim: 4 };
        let cpu = Cpu::<S>::default();
        let matrix = |scale: f64, salt: usize| {
            let value = |i: usize| ((i * 7919 + salt * 104_729) % 2001) as f64 / 1000.0 - 1.0;
            Tensor::from_fn(&cpu, Category::Buffers, T, 4, |i| S::from_f64((scale * value(i)) as f32 as f64))
        };
        let filled = |cols: usize, value: S| Tensor::from_fn(&cpu, Category::Buffers, T, cols, |_| value);
        let (q, k, v) = (matrix(14.0, 1), matrix(14.0, 2), matrix(1.0, 3));
        let qkv = || Qkv { q: q.view(), k: k.view(), v: v.view() };
        let (mut out, mut max, mut sum) = (filled(4, S::ZERO), filled(1, S::NEG_INF), filled(1, S::ZERO));
        let mut scratch = Tensor::empty(&cpu, Category::Buffers, 1, Cpu::<S>::attention_scratch(HEADS, T));
        let tokens = Causal { row: 0, len: T, position: 0 };
        let spans = [Span { query: tokens, key: tokens }];
        let run = Softmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_block(HEADS, &spans, qkv(), run, scratch.view_mut());
        let run = Softmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_finish(HEADS, run);
        let (d_o, mut delta) = (filled(4, S::ONE), filled(1, S::ZERO));
        cpu.attention_delta(HEADS, delta.view_mut(), out.view(), d_o.view());
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| filled(4, S::ZERO));
        let gradients = [dq.view_mut(), dk.view_mut(), dv.view_mut()];
        let saved = (max.view(), delta.view());
        cpu.attention_block_backward(HEADS, &spans, qkv(), saved, d_o.view(), gradients, scratch.view_mut());
        [out, max, dq, dk, dv].iter().flat_map(|t| t.read().unwrap()).collect()
    }

    /// The field cannot see a stabiliser that is missing or that only looks at a tile: e^200 overflows f32.
    #[test]
    fn scores_of_two_hundred_do_not_overflow() {
        let (single, double) = (attend::<f32>(), attend::<f64>());
        let largest = double.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(largest > 150.0 && largest.is_finite(), "{largest}");
        for (i, (a, b)) in single.iter().zip(&double).enumerate() {
            assert!((a.to_f64() - b).abs() < 2e-3 * (1.0 + b.abs()), "element {i}: {a} {b}");
        }
    }
}
