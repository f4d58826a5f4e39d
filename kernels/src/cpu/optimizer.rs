//! Norms of gradients and the optimizers' steps.
use super::simd::dot;
use super::{In, Out};
use crate::AdamW;
use tensor::Scalar;

#[inline(always)]
pub(super) fn add_norm2<S: Scalar>(mut out: Out<S>, x: In<S>) {
    for i in 0..x.rows() {
        let x = x.row(i);
        let sum = &mut out.row(0)[0];
        *sum = S::narrow(sum.widen() + dot(x, x));
    }
}

#[inline(always)]
pub(super) fn clip_factor<S: Scalar>(mut factor: Out<S>, norm2: In<S>, limit: f64) {
    factor.set(0, 0, S::clip_factor(norm2.at(0, 0), limit));
}

#[inline(always)]
pub(super) fn sgd<S: Scalar>(
    mut w: Out<S>,
    mut master: Option<Out<S::Wide>>,
    g: In<S::Wide>,
    factor: In<S::Wide>,
    lr: f64,
) {
    let step = S::Wide::from_f64(lr) * factor.at(0, 0);
    for i in 0..g.rows() {
        let moved = g.row(i).iter().map(|&g| step * g);
        change(w.row(i), master.as_mut().map(|master| master.row(i)), moved, |w, moved| w - moved);
    }
}

/// The first and the second.
type Moments<'a, S> = (Out<'a, <S as Scalar>::Wide>, Out<'a, <S as Scalar>::Wide>);

#[inline(always)]
pub(super) fn adamw<S: Scalar>(
    mut w: Out<S>,
    mut master: Option<Out<S::Wide>>,
    (mut m, mut v): Moments<S>,
    g: In<S::Wide>,
    factor: In<S::Wide>,
    constants: AdamW,
) {
    let (one, of) = (S::Wide::ONE, S::Wide::from_f64);
    let AdamW { lr, beta1, beta2, eps, decay, step } = constants;
    let (lr, beta1, beta2, factor) = (of(lr), of(beta1), of(beta2), factor.at(0, 0));
    let keep = one - lr * of(decay);
    let first = lr * (one - beta1.pow(step)).inv();
    let second = (one - beta2.pow(step)).inv();
    for i in 0..g.rows() {
        let (m, v, g) = (m.row(i), v.row(i), g.row(i));
        average(m, g, beta1, |g| g * factor);
        average(v, g, beta2, |g| g * factor * (g * factor));
        let moved = m.iter().zip(&*v).map(|(&m, &v)| first * m * S::Wide::adam_scale(v * second, eps));
        change(w.row(i), master.as_mut().map(|master| master.row(i)), moved, |w, moved| w * keep - moved);
    }
}

/// w = f(w, moved): the master's, if there is one, and then w is its value.
#[inline(always)]
fn change<S: Scalar>(
    w: &mut [S],
    master: Option<&mut [S::Wide]>,
    moved: impl Iterator<Item = S::Wide>,
    f: impl Fn(S::Wide, S::Wide) -> S::Wide,
) {
    match master {
        None => w.iter_mut().zip(moved).for_each(|(w, moved)| *w = S::narrow(f(w.widen(), moved))),
        Some(master) => {
            for ((w, master), moved) in w.iter_mut().zip(master).zip(moved) {
                *master = f(*master, moved);
                *w = S::narrow(*master);
            }
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
            cpu.adamw(w.view_mut(), None, moments, g.view(), scale.view(), constants);
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
        cpu.sgd(w.view_mut(), None, g.view(), matrix(1, 1, |_| factor).view(), 0.5);
        let wanted = before.into_iter().zip(read(&g)).map(|(w, g)| w - 0.5 * factor * g);
        assert!(read(&w).into_iter().zip(wanted).all(|(seen, wanted)| (seen - wanted).abs() < 1e-15));
    }
}
