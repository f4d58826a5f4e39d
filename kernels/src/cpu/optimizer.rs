//! Norms of gradients and steps of optimizers.
use super::matrices::{In, Out};
use super::simd::dot;
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
    constants: [f64; 2],
) {
    let [lr, decay] = constants.map(S::Wide::from_f64);
    let (step, keep) = (lr * factor.at(0, 0), S::Wide::ONE - lr * decay);
    for i in 0..g.rows() {
        let moved = g.row(i).iter().map(|&g| step * g);
        change(w.row(i), master.as_mut().map(|master| master.row(i)), moved, |w, moved| w * keep - moved);
    }
}

/// First and second moment.
type Moments<'a, S> = (Out<'a, <S as Scalar>::Wide>, Out<'a, <S as Scalar>::Wide>);

#[inline(always)]
pub(super) fn adamw<S: Scalar>(
    mut w: Out<S>,
    mut master: Option<Out<S::Wide>>,
    (mut m, mut v): Moments<S>,
    g: In<S::Wide>,
    factor: In<S::Wide>,
    (constants, number): ([f64; 5], usize),
) {
    let (one, eps) = (S::Wide::ONE, constants[3]);
    let [lr, beta1, beta2, _, decay] = constants.map(S::Wide::from_f64);
    let (keep, factor) = (one - lr * decay, factor.at(0, 0));
    let first = lr * (one - beta1.pow(number)).inv();
    let second = (one - beta2.pow(number)).inv();
    for i in 0..g.rows() {
        let (m, v, g) = (m.row(i), v.row(i), g.row(i));
        average(m, g, beta1, |g| g * factor);
        average(v, g, beta2, |g| g * factor * (g * factor));
        let moved = m.iter().zip(&*v).map(|(&m, &v)| first * m * S::Wide::adam_scale(v * second, eps));
        change(w.row(i), master.as_mut().map(|master| master.row(i)), moved, |w, moved| w * keep - moved);
    }
}

#[inline(always)]
pub(super) fn lion<S: Scalar>(
    mut w: Out<S>,
    mut master: Option<Out<S::Wide>>,
    mut m: Out<S::Wide>,
    g: In<S::Wide>,
    factor: In<S::Wide>,
    constants: [f64; 4],
) {
    let one = S::Wide::ONE;
    let [lr, beta1, beta2, decay] = constants.map(S::Wide::from_f64);
    let (keep, fresh, factor) = (one - lr * decay, one - beta1, factor.at(0, 0));
    for i in 0..g.rows() {
        let (m, g) = (m.row(i), g.row(i));
        let moved = m.iter().zip(g).map(|(&m, &g)| lr * (m * beta1 + fresh * (g * factor)).sign());
        change(w.row(i), master.as_mut().map(|master| master.row(i)), moved, |w, moved| w * keep - moved);
        average(m, g, beta2, |g| g * factor);
    }
}

#[inline(always)]
pub(super) fn momentum<S: Scalar>(mut to: Out<S>, mut m: Out<S>, g: In<S>, factor: In<S>, beta: f64) {
    let (beta, factor) = (S::from_f64(beta), factor.at(0, 0));
    let fresh = S::ONE - beta;
    for i in 0..g.rows() {
        let (m, g) = (m.row(i), g.row(i));
        average(m, g, beta, |g| g * factor);
        to.row(i).iter_mut().zip(&*m).zip(g).for_each(|((to, &m), &g)| *to = m * beta + fresh * (g * factor));
    }
}

#[inline(always)]
pub(super) fn scale<S: Scalar>(mut y: Out<S>, x: In<S>, factor: In<S>, by: f64) {
    let by = S::narrow(S::Wide::from_f64(by)) * factor.at(0, 0);
    for i in 0..x.rows() {
        y.row(i).iter_mut().zip(x.row(i)).for_each(|(y, &x)| *y = by * x);
    }
}

/// w = f(w, moved). With a master, the master is updated, and w is its rounded value.
#[inline(always)]
pub(super) fn change<S: Scalar>(
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

/// Moving average: to = β·to + (1 − β)·f(x). One output per loop, so that it vectorises.
#[inline(always)]
pub(super) fn average<S: Scalar>(to: &mut [S], x: &[S], beta: S, f: impl Fn(S) -> S) {
    let fresh = S::ONE - beta;
    for (to, &x) in to.iter_mut().zip(x) {
        *to = *to * beta + fresh * f(x);
    }
}
