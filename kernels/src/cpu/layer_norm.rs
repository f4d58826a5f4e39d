//! `LayerNorm` and its backward. Source: Ba, Kiros, Hinton, "Layer normalization", §3.1, arXiv:1607.06450.
use super::matrices::{In, Out};
use super::norm::write;
use super::simd::sum;
use tensor::Scalar;

#[inline(always)]
pub(super) fn forward<S: Scalar>(
    mut y: Out<S>,
    mut stats: Out<S::Wide>,
    x: In<S>,
    gain: In<S>,
    bias: In<S>,
    eps: f64,
) {
    let (count, eps) = (S::Wide::from_usize(x.cols()).inv(), S::Wide::from_f64(eps));
    let [gain, bias] = [gain, bias].map(|row| row.row(0));
    for i in 0..x.rows() {
        let (x, y) = (x.row(i), y.row(i));
        let mean = sum([x], |[x]| x) * count;
        let r = (sum([x], |[x]| (x - mean) * (x - mean)) * count + eps).rsqrt();
        stats.row(i).copy_from_slice(&[mean, r]);
        for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(gain).zip(bias) {
            *y = S::narrow((x.widen() - mean) * r * g.widen() + b.widen());
        }
    }
}

/// With c = x − mean, g = dy·gain: dx = skip + r·(g − Σg/n) − c·r³/n·Σ(g·c); dgain += dy·c·r; dbias += dy.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // as the kernel
pub(super) fn backward<S: Scalar>(
    mut dx: Out<S>,
    [mut dgain, mut dbias]: [Out<S::Wide>; 2],
    x: In<S>,
    stats: In<S::Wide>,
    gain: In<S>,
    dy: In<S>,
    skip: Option<In<S>>,
) {
    let (count, gain) = (S::Wide::from_usize(x.cols()).inv(), gain.row(0));
    let [dgain, dbias] = [&mut dgain, &mut dbias].map(|sums| sums.row(0));
    for i in 0..x.rows() {
        let (x, dy, dx) = (x.row(i), dy.row(i), dx.row(i));
        let [mean, r] = [0, 1].map(|column| stats.row(i)[column]);
        let flat = sum([dy, gain], |[dy, g]| dy * g) * count;
        let along = sum([dy, gain, x], |[dy, g, x]| dy * g * (x - mean)) * r * r * r * count;
        let d = |dy: S, g: S, x: S| (dy.widen() * g.widen() - flat) * r - (x.widen() - mean) * along;
        write(dx, [dy, gain, x], skip.map(|skip| skip.row(i)), d);
        for ((dgain, &x), &dy) in dgain.iter_mut().zip(x).zip(dy) {
            *dgain += dy.widen() * (x.widen() - mean) * r;
        }
        for (dbias, &dy) in dbias.iter_mut().zip(dy) {
            *dbias += dy.widen();
        }
    }
}
