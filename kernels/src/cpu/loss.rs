//! The pieces of a vocabulary-parallel cross-entropy, and the embedding.
use super::simd::{stab, sum};
use crate::kernels::Slice;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn row_stab<S: Scalar>(mut m: ViewMut<Cpu<S>>, logits: View<Cpu<S>>) {
    for i in 0..logits.rows() {
        m.row(i)[0] = stab(logits.row(i));
    }
}

#[inline(always)]
pub(super) fn row_sums<S: Scalar>(
    mut sums: ViewMut<Cpu<S>>,
    logits: View<Cpu<S>>,
    m: View<Cpu<S>>,
    targets: &[u32],
    slice: Slice,
) {
    for i in 0..logits.rows() {
        let (x, m) = (logits.row(i), m.row(i)[0]);
        let total = sum(x, |x| S::exp_sub(x, m));
        sums.row(i).copy_from_slice(&[total, slice.local(targets[i]).map_or(S::ZERO, |j| x[j])]);
    }
}

#[inline(always)]
pub(super) fn cross_entropy<S: Scalar>(
    mut loss: ViewMut<Cpu<S>>,
    mut m: ViewMut<Cpu<S>>,
    sums: View<Cpu<S>>,
    tokens: usize,
) {
    let mut total = S::ZERO;
    for i in 0..sums.rows() {
        let lse = S::lse(m.row(i)[0], sums.row(i)[0]);
        m.row(i)[0] = lse;
        total += lse - sums.row(i)[1];
    }
    loss.row(0)[0] = total * S::from_usize(tokens).inv();
}

#[inline(always)]
pub(super) fn cross_entropy_backward<S: Scalar>(
    mut logits: ViewMut<Cpu<S>>,
    lse: View<Cpu<S>>,
    targets: &[u32],
    slice: Slice,
    tokens: usize,
) {
    let share = S::from_usize(tokens).inv();
    for i in 0..logits.rows() {
        let (x, lse) = (logits.row(i), lse.row(i)[0]);
        for x in x.iter_mut() {
            *x = S::exp_sub(*x, lse) * share;
        }
        if let Some(j) = slice.local(targets[i]) {
            x[j] = x[j] - share;
        }
    }
}

#[inline(always)]
pub(super) fn embed<S: Scalar>(mut y: ViewMut<Cpu<S>>, table: View<Cpu<S>>, ids: &[u32], slice: Slice) {
    for (i, &id) in ids.iter().enumerate() {
        match slice.local(id) {
            Some(j) => y.row(i).copy_from_slice(table.row(j)),
            None => y.row(i).fill(S::ZERO),
        }
    }
}

#[inline(always)]
pub(super) fn embed_backward<S: Scalar>(
    mut dtable: ViewMut<Cpu<S>>,
    dy: View<Cpu<S>>,
    ids: &[u32],
    slice: Slice,
) {
    for (i, &id) in ids.iter().enumerate() {
        if let Some(j) = slice.local(id) {
            for (d, &g) in dtable.row(j).iter_mut().zip(dy.row(i)) {
                *d += g;
            }
        }
    }
}
