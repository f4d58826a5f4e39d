//! Norms of gradients and the optimizers' steps.
use super::simd::dot;
use crate::kernels::AdamW;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn add_norm2<S: Scalar>(mut out: ViewMut<Cpu<S>>, x: View<Cpu<S>>) {
    for i in 0..x.rows() {
        let x = x.row(i);
        out.row(0)[0] += dot(x, x);
    }
}

#[inline(always)]
pub(super) fn sgd<S: Scalar>(mut w: ViewMut<Cpu<S>>, g: View<Cpu<S>>, factor: View<Cpu<S>>, lr: f64) {
    let step = S::from_f64(lr) * factor.at(0, 0);
    for i in 0..g.rows() {
        for (w, &g) in w.row(i).iter_mut().zip(g.row(i)) {
            *w = *w - step * g;
        }
    }
}

#[inline(always)]
pub(super) fn adamw<S: Scalar>(
    mut w: ViewMut<Cpu<S>>,
    (mut m, mut v): (ViewMut<Cpu<S>>, ViewMut<Cpu<S>>),
    g: View<Cpu<S>>,
    factor: View<Cpu<S>>,
    constants: AdamW,
) {
    let AdamW { lr, beta1, beta2, eps, decay, step } = constants;
    let (lr, beta1, beta2, factor) =
        (S::from_f64(lr), S::from_f64(beta1), S::from_f64(beta2), factor.at(0, 0));
    let keep = S::ONE - lr * S::from_f64(decay);
    let first = lr * (S::ONE - beta1.pow(step)).inv();
    let second = (S::ONE - beta2.pow(step)).inv();
    for i in 0..g.rows() {
        let (w, m, v, g) = (w.row(i), m.row(i), v.row(i), g.row(i));
        average(m, g, beta1, |g| g * factor);
        average(v, g, beta2, |g| g * factor * (g * factor));
        for ((w, &m), &v) in w.iter_mut().zip(&*m).zip(&*v) {
            *w = *w * keep - first * m * S::adam_scale(v * second, eps);
        }
    }
}

/// The moving average to = β·to + (1 − β)·f(x); one output a loop, so that it vectorises.
#[inline(always)]
fn average<S: Scalar>(to: &mut [S], x: &[S], beta: S, f: impl Fn(S) -> S) {
    let fresh = S::ONE - beta;
    for (to, &x) in to.iter_mut().zip(x) {
        *to = *to * beta + fresh * f(x);
    }
}
