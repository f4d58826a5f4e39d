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

#[cfg(test)]
mod tests {
    use crate::proof::{Matrix, draw, matrix, read};
    use crate::{AdamW, Kernels};
    use tensor::Cpu;

    /// Three steps by the formulas of the papers, in doubles. Kills: a moment with the other's decay or corrected by another
    /// step, a factor that scales the step instead of the gradient, decay of what was moved, ε inside the root.
    #[test]
    fn steps_equal_the_formulas() {
        let (cpu, mut w): (Cpu<f64>, Matrix<f64>) = (Cpu::default(), draw(1, 3, 5));
        let [mut m, mut v] = [(); 2].map(|()| matrix(3, 5, |_| 0.0));
        let (mut theirs, factor) = (read(&w).into_iter().map(|w| (w, 0.0, 0.0)).collect::<Vec<_>>(), 0.3);
        for step in 1..=3 {
            let (g, lr): (Matrix<f64>, _) = (draw(1 + step as u64, 3, 5), 0.1 / step as f64);
            let constants = AdamW { lr, beta1: 0.9, beta2: 0.95, eps: 0.01, decay: 0.2, step };
            let (moments, scale) = ((m.view_mut(), v.view_mut()), matrix(1, 1, |_| factor));
            cpu.adamw(w.view_mut(), moments, g.view(), scale.view(), constants);
            for ((w, m, v), g) in theirs.iter_mut().zip(read(&g)) {
                let g = factor * g;
                (*m, *v) = (0.9 * *m + 0.1 * g, 0.95 * *v + 0.05 * g * g);
                let [first, second] =
                    [*m / (1.0 - 0.9f64.powi(step as i32)), *v / (1.0 - 0.95f64.powi(step as i32))];
                *w -= lr * 0.2 * *w + lr * first / (second.sqrt() + 0.01);
            }
            for (seen, (wanted, ..)) in read(&w).into_iter().zip(&theirs) {
                assert!((seen - wanted).abs() < 1e-14, "step {step}: {seen}, wanted {wanted}");
            }
        }
        let (before, g): (_, Matrix<f64>) = (read(&w), draw(9, 3, 5));
        cpu.sgd(w.view_mut(), g.view(), matrix(1, 1, |_| factor).view(), 0.5);
        let wanted = before.into_iter().zip(read(&g)).map(|(w, g)| w - 0.5 * factor * g);
        assert!(read(&w).into_iter().zip(wanted).all(|(seen, wanted)| (seen - wanted).abs() < 1e-15));
    }
}
