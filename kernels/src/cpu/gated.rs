//! Functions of a gate g and u: one sigmoid s of each pair, between products.
//!
//! ```text
//! h = g'·s·u'      dg = dh·u'·(s + g'·s·(1 − s)·slope)·[g' is g]      du = dh·g'·s·[u' is u]
//! ```
use super::matrices::{In, Out};
use crate::Gate;
use tensor::Scalar;

/// A function of a gate.
trait GateFunction<S: Scalar> {
    /// Returns the sigmoid's argument, and its slope.
    fn argument(g: S) -> [S; 2];
    /// Returns g' and u', and 1 or 0 for each: its slope.
    #[inline(always)]
    fn clamped(g: S, u: S) -> ([S; 2], [S; 2]) {
        ([g, u], [S::ONE; 2])
    }
}

struct Silu;
impl<S: Scalar> GateFunction<S> for Silu {
    #[inline(always)]
    fn argument(g: S) -> [S; 2] {
        [g, S::ONE]
    }
}

struct GeluTanh;
impl<S: Scalar> GateFunction<S> for GeluTanh {
    #[inline(always)]
    fn argument(g: S) -> [S; 2] {
        let (a, b) = S::gelu_constants();
        [a * (g + b * g * g * g), a * (S::ONE + S::from_usize(3) * b * g * g)]
    }
}

struct Clamped;
impl<S: Scalar> GateFunction<S> for Clamped {
    #[inline(always)]
    fn argument(g: S) -> [S; 2] {
        let a = S::from_f64(1.702);
        [a * g, a]
    }
    #[inline(always)]
    fn clamped(g: S, u: S) -> ([S; 2], [S; 2]) {
        let most = S::from_usize(7);
        let [high, above, below] = [g - most, u - most, -most - u].map(S::step);
        let keeps = [S::ONE - high, S::ONE - above - below];
        ([keeps[0] * g + high * most, keeps[1] * u + (above - below) * most + S::ONE], keeps)
    }
}

#[inline(always)]
pub(super) fn forward<S: Scalar>(h: Out<S>, gate: In<S>, up: In<S>, f: Gate) {
    match f {
        Gate::Silu => each::<S, Silu>(h, gate, up),
        Gate::GeluTanh => each::<S, GeluTanh>(h, gate, up),
        Gate::Clamped => each::<S, Clamped>(h, gate, up),
    }
}

#[inline(always)]
fn each<S: Scalar, F: GateFunction<S::Wide>>(mut h: Out<S>, gate: In<S>, up: In<S>) {
    for i in 0..h.rows() {
        for ((h, &g), &u) in h.row(i).iter_mut().zip(gate.row(i)).zip(up.row(i)) {
            let ([g, u], _) = F::clamped(g.widen(), u.widen());
            *h = S::narrow(g * F::argument(g)[0].sigmoid() * u);
        }
    }
}

#[inline(always)]
pub(super) fn backward<S: Scalar>(mut dgate: Out<S>, mut dup: Out<S>, of: [In<S>; 3], f: Gate) {
    for i in 0..of[0].rows() {
        let back = match f {
            Gate::Silu => back::<S, Silu>,
            Gate::GeluTanh => back::<S, GeluTanh>,
            Gate::Clamped => back::<S, Clamped>,
        };
        back(dgate.row(i), dup.row(i), of.map(|x| x.row(i)));
    }
}

/// Computes a row in pieces, whose sigmoids stay in registers.
#[inline(always)]
fn back<S: Scalar, F: GateFunction<S::Wide>>(dgate: &mut [S], dup: &mut [S], of: [&[S]; 3]) {
    const PIECE: usize = 64;
    let whole = dgate.len() / PIECE * PIECE;
    for at in (0..whole).step_by(PIECE) {
        gated_piece::<S, F, PIECE>(at, dgate, dup, of);
    }
    for at in whole..dgate.len() {
        gated_piece::<S, F, 1>(at, dgate, dup, of);
    }
}

/// Computes one output per loop: with two, LLVM fails to prove that five slices do not overlap, and does not
/// vectorise.
#[inline(always)]
fn gated_piece<S: Scalar, F: GateFunction<S::Wide>, const N: usize>(
    at: usize,
    dgate: &mut [S],
    dup: &mut [S],
    of: [&[S]; 3],
) {
    let [gate, up, dh]: [&[S; N]; 3] = of.map(|x| x[at..at + N].as_array().expect("a piece"));
    let clamped = |j: usize| F::clamped(gate[j].widen(), up[j].widen());
    let g: [S::Wide; N] = std::array::from_fn(|j| clamped(j).0[0]);
    let s: [S::Wide; N] = std::array::from_fn(|j| F::argument(g[j])[0].sigmoid());
    let slope = |j: usize| s[j] + g[j] * s[j] * (S::Wide::ONE - s[j]) * F::argument(g[j])[1];
    let dg: [S; N] = std::array::from_fn(|j| {
        let ([_, u], [keeps, _]) = clamped(j);
        S::narrow(dh[j].widen() * u * slope(j) * keeps)
    });
    let du: [S; N] = std::array::from_fn(|j| S::narrow(dh[j].widen() * g[j] * s[j] * clamped(j).1[1]));
    dgate[at..at + N].copy_from_slice(&dg);
    dup[at..at + N].copy_from_slice(&du);
}
