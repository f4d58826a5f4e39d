//! RMSNorm and its backward. Source: Zhang, Sennrich, "Root mean square layer normalization", arXiv:1910.07467.
use super::simd::dot;
use tensor::{Cpu, Scalar, View, ViewMut};

#[inline(always)]
pub(super) fn forward<S: Scalar>(
    mut y: ViewMut<Cpu<S>>,
    mut r: ViewMut<Cpu<S>>,
    x: View<Cpu<S>>,
    gain: View<Cpu<S>>,
    eps: f64,
) {
    let (count, eps, gain) = (S::from_usize(x.cols()).inv(), S::from_f64(eps), gain.row(0));
    for i in 0..x.rows() {
        let x = x.row(i);
        let scale = (dot(x, x) * count + eps).rsqrt();
        r.row(i)[0] = scale;
        for ((y, &x), &g) in y.row(i).iter_mut().zip(x).zip(gain) {
            *y = x * scale * g;
        }
    }
}

/// dx = skip + r·(dy·g) − x·r³/n·Σ(dy·g·x); dgain += dy·x·r.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // as the kernel
pub(super) fn backward<S: Scalar>(
    mut dx: ViewMut<Cpu<S>>,
    mut dgain: ViewMut<Cpu<S>>,
    x: View<Cpu<S>>,
    r: View<Cpu<S>>,
    gain: View<Cpu<S>>,
    dy: View<Cpu<S>>,
    skip: Option<View<Cpu<S>>>,
) {
    let (count, gain, dgain) = (S::from_usize(x.cols()).inv(), gain.row(0), dgain.row(0));
    for i in 0..x.rows() {
        let (x, dy, r, dx) = (x.row(i), dy.row(i), r.row(i)[0], dx.row(i));
        for ((d, &dy), &g) in dx.iter_mut().zip(dy).zip(gain) {
            *d = dy * g;
        }
        let along = dot(dx, x) * r * r * r * count;
        row(dx, dgain, x, dy, r, along);
        if let Some(skip) = skip {
            for (d, &s) in dx.iter_mut().zip(skip.row(i)) {
                *d += s;
            }
        }
    }
}

/// A function of its own, so that its arguments are known not to overlap.
#[inline(always)]
fn row<S: Scalar>(dx: &mut [S], dgain: &mut [S], x: &[S], dy: &[S], r: S, along: S) {
    for (((d, dgain), &x), &dy) in dx.iter_mut().zip(dgain).zip(x).zip(dy) {
        *d = *d * r - x * along;
        *dgain += dy * x * r;
    }
}
