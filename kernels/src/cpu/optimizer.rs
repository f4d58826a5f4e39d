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

/// Numbers of a step of `AdamW`: 1 − lr·λ, lr/(1 − β₁ᵗ), 1/(1 − β₂ᵗ), and the constants.
pub(super) struct AdamTerms<W> {
    pub(super) keep: W,
    pub(super) first: W,
    pub(super) second: W,
    pub(super) beta1: W,
    pub(super) beta2: W,
    pub(super) eps: f64,
}

impl<W: Scalar> AdamTerms<W> {
    /// Takes the learning rate, β₁, β₂, ε and the decay λ, and the step's number `t`.
    #[inline(always)]
    pub(super) fn new(constants: [f64; 5], number: usize) -> Self {
        let [lr, beta1, beta2, _, decay] = constants.map(W::from_f64);
        let first = lr * (W::ONE - beta1.pow(number)).inv();
        let second = (W::ONE - beta2.pow(number)).inv();
        Self { keep: W::ONE - lr * decay, first, second, beta1, beta2, eps: constants[3] }
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
    let AdamTerms { keep, first, second, beta1, beta2, eps } = AdamTerms::new(constants, number);
    let factor = factor.at(0, 0);
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
fn average<S: Scalar>(to: &mut [S], x: &[S], beta: S, f: impl Fn(S) -> S) {
    let fresh = S::ONE - beta;
    for (to, &x) in to.iter_mut().zip(x) {
        *to = *to * beta + fresh * f(x);
    }
}
