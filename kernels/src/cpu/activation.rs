//! Element-wise functions and their derivatives.
use super::elementwise::each;
use super::matrices::{In, Out};
use crate::Activation;
use tensor::Scalar;

#[inline(always)]
pub(super) fn forward<S: Scalar>(h: Out<S>, x: In<S>, f: Activation) {
    match f {
        Activation::Gelu => map(h, x, |x| x * x.normal_cdf()),
        Activation::GeluTanh => {
            let (a, b) = S::Wide::gelu_constants();
            map(h, x, |x| x * gate(x, a, b));
        }
        Activation::Relu => map(h, x, |x| x * x.step()),
    }
}

/// f' is Φ + x·φ for `Gelu`; s + x·s·(1 − s)·a·(1 + 3b·x²) with s = sigmoid(a·(x + b·x³)) for `GeluTanh`; the
/// unit step for `Relu`.
#[inline(always)]
pub(super) fn backward<S: Scalar>(dx: Out<S>, x: In<S>, dh: In<S>, f: Activation) {
    match f {
        Activation::Gelu => slope(dx, x, dh, |x| x.normal_cdf() + x * x.normal_pdf()),
        Activation::GeluTanh => {
            let (a, b) = S::Wide::gelu_constants();
            let b3 = S::Wide::from_usize(3) * b;
            let one = S::Wide::ONE;
            slope(dx, x, dh, |x| {
                let s = gate(x, a, b);
                s + x * s * (one - s) * a * (one + b3 * x * x)
            });
        }
        Activation::Relu => slope(dx, x, dh, S::Wide::step),
    }
}

#[inline(always)]
fn gate<S: Scalar>(x: S, a: S, b: S) -> S {
    (a * (x + b * x * x * x)).sigmoid()
}

#[inline(always)]
fn map<S: Scalar>(h: Out<S>, x: In<S>, f: impl Fn(S::Wide) -> S::Wide) {
    each(h, x, |h, x| *h = S::narrow(f(x.widen())));
}

#[inline(always)]
fn slope<S: Scalar>(mut dx: Out<S>, x: In<S>, dh: In<S>, f: impl Fn(S::Wide) -> S::Wide) {
    for i in 0..x.rows() {
        for ((dx, &x), &dh) in dx.row(i).iter_mut().zip(x.row(i)).zip(dh.row(i)) {
            *dx = S::narrow(dh.widen() * f(x.widen()));
        }
    }
}
