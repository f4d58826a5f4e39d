//! Additions, rotary embedding, SwiGLU.
use crate::kernels::Causal;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn fill<S: Scalar>(mut y: ViewMut<Cpu<S>>, value: S) {
    for i in 0..y.rows() {
        y.row(i).fill(value);
    }
}

#[inline(always)]
pub(super) fn copy<S: Scalar>(mut y: ViewMut<Cpu<S>>, x: View<Cpu<S>>) {
    assert_eq!(y.rows(), x.rows());
    for i in 0..x.rows() {
        y.row(i).copy_from_slice(x.row(i));
    }
}

#[inline(always)]
pub(super) fn add<S: Scalar>(mut y: ViewMut<Cpu<S>>, a: View<Cpu<S>>) {
    assert_eq!(y.rows(), a.rows());
    for i in 0..a.rows() {
        for (y, &a) in y.row(i).iter_mut().zip(a.row(i)) {
            *y += a;
        }
    }
}

/// (a, b) to (a·cos − b·sin, a·sin + b·cos), the same for all heads.
#[inline(always)]
pub(super) fn rotate<S: Scalar>(
    mut x: ViewMut<Cpu<S>>,
    table: View<Cpu<S>>,
    tokens: &[Causal],
    dim: usize,
    back: bool,
) {
    let half = dim / 2;
    for (row, position) in tokens.iter().flat_map(|t| (0..t.len).map(|i| (t.row + i, t.position + i))) {
        let (cos, sin) = table.row(position).split_at(half);
        for head in x.row(row).chunks_exact_mut(dim) {
            let (a, b) = head.split_at_mut(half);
            for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                let sin = if back { -sin } else { sin };
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}

#[inline(always)]
pub(super) fn swiglu<S: Scalar>(mut h: ViewMut<Cpu<S>>, gate: View<Cpu<S>>, up: View<Cpu<S>>) {
    for i in 0..h.rows() {
        for ((h, &g), &u) in h.row(i).iter_mut().zip(gate.row(i)).zip(up.row(i)) {
            *h = g * g.sigmoid() * u;
        }
    }
}

/// With s = sigmoid(g): dgate = dh·u·(s + g·s·(1 − s)), dup = dh·g·s.
#[inline(always)]
pub(super) fn swiglu_backward<S: Scalar>(
    mut dgate: ViewMut<Cpu<S>>,
    mut dup: ViewMut<Cpu<S>>,
    gate: View<Cpu<S>>,
    up: View<Cpu<S>>,
    dh: View<Cpu<S>>,
) {
    for i in 0..dh.rows() {
        swiglu_row(dgate.row(i), dup.row(i), gate.row(i), up.row(i), dh.row(i));
    }
}

/// One output a loop: with two, LLVM gives up on proving that five slices do not overlap, and does not vectorise.
#[inline(always)]
fn swiglu_row<S: Scalar>(dgate: &mut [S], dup: &mut [S], gate: &[S], up: &[S], dh: &[S]) {
    for (s, &g) in dup.iter_mut().zip(gate) {
        *s = g.sigmoid();
    }
    for ((((dg, &s), &g), &u), &dh) in dgate.iter_mut().zip(&*dup).zip(gate).zip(up).zip(dh) {
        *dg = dh * u * (s + g * s * (S::ONE - s));
    }
    for ((du, &g), &dh) in dup.iter_mut().zip(gate).zip(dh) {
        *du = dh * g * *du;
    }
}
