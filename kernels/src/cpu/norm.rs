//! RMSNorm and its backward. Source: Zhang, Sennrich, "Root mean square layer normalization",
//! arXiv:1910.07467.
use super::matrices::{In, Out};
use super::simd::{dot, sum};
use tensor::Scalar;

#[inline(always)]
pub(super) fn forward<S: Scalar>(mut y: Out<S>, mut r: Out<S::Wide>, x: In<S>, gain: In<S>, eps: f64) {
    let (count, eps, gain) = (S::Wide::from_usize(x.cols()).inv(), S::Wide::from_f64(eps), gain.row(0));
    for i in 0..x.rows() {
        let x = x.row(i);
        let scale = (dot(x, x) * count + eps).rsqrt();
        r.row(i)[0] = scale;
        for ((y, &x), &g) in y.row(i).iter_mut().zip(x).zip(gain) {
            *y = S::narrow(x.widen() * scale * g.widen());
        }
    }
}

#[inline(always)]
pub(super) fn inverse_rms<S: Scalar>(mut r: Out<S>, n: usize, eps: f64) {
    let [count, eps] = [S::from_usize(n).inv(), S::from_f64(eps)];
    for i in 0..r.rows() {
        let r = &mut r.row(i)[0];
        *r = (*r * count + eps).rsqrt();
    }
}

#[inline(always)]
pub(super) fn part<S: Scalar>(
    mut y: Out<S>,
    x: In<S>,
    stats: In<S::Wide>,
    gain: In<S>,
    z: Option<In<S>>,
    n: usize,
) {
    let count = S::Wide::from_usize(n).inv();
    for i in 0..x.rows() {
        let stats = stats.row(i);
        let r = stats[0];
        let scaled = |x: S, g: S| x.widen() * r * g.widen();
        let y = y.row(i).iter_mut().zip(x.row(i)).zip(gain.row(0));
        match &z {
            None => y.for_each(|((y, &x), &g)| *y = S::narrow(scaled(x, g))),
            Some(z) => {
                let along = r * r * stats[1] * count;
                y.zip(z.row(i))
                    .for_each(|(((y, &x), &g), &z)| *y = S::narrow(scaled(x, g) - z.widen() * along));
            }
        }
    }
}

/// dx = skip + r·(dy·g) − x·r³/n·Σ(dy·g·x); dgain += dy·x·r.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // as the kernel
pub(super) fn backward<S: Scalar>(
    mut dx: Out<S>,
    mut dgain: Out<S::Wide>,
    x: In<S>,
    r: In<S::Wide>,
    gain: In<S>,
    dy: In<S>,
    skip: Option<In<S>>,
) {
    let (count, gain, dgain) = (S::Wide::from_usize(x.cols()).inv(), gain.row(0), dgain.row(0));
    for i in 0..x.rows() {
        let (x, dy, r, dx) = (x.row(i), dy.row(i), r.row(i)[0], dx.row(i));
        let along = sum([dy, gain, x], |[dy, g, x]| dy * g * x) * r * r * r * count;
        let d = |dy: S, g: S, x: S| dy.widen() * g.widen() * r - x.widen() * along;
        write(dx, [dy, gain, x], skip.map(|skip| skip.row(i)), d);
        for ((dgain, &x), &dy) in dgain.iter_mut().zip(x).zip(dy) {
            *dgain += dy.widen() * x.widen() * r;
        }
    }
}

/// dx = skip + d(dy, gain, x), rounded once.
#[inline(always)]
pub(super) fn write<S: Scalar>(
    dx: &mut [S],
    [dy, gain, x]: [&[S]; 3],
    skip: Option<&[S]>,
    d: impl Fn(S, S, S) -> S::Wide,
) {
    let dx = dx.iter_mut().zip(dy).zip(gain).zip(x);
    match skip {
        None => dx.for_each(|(((dx, &dy), &g), &x)| *dx = S::narrow(d(dy, g, x))),
        Some(skip) => dx
            .zip(skip)
            .for_each(|((((dx, &dy), &g), &x), &skip)| *dx = S::narrow(d(dy, g, x) + skip.widen())),
    }
}
