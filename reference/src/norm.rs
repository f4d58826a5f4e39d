//! Root-mean-square norm: each token's features divided by their root mean square, times a learned gain.
//!
//! Letters: `B` tokens, `D` features; `r = 1/√(mean(x²) + ε)` of one token.
//!
//! ```text
//! forward    Y = X · r · gain
//! backward  dX = r·gain·dY − X · r³/D · Σ_D (dY·gain·X)      as dr/dx = −r³·x/D
//!         dgain = Σ_B dY · X · r
//! ```
//! Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
use crate::linear::{add, dot};
use tensor::Scalar;

/// `X[B,D], gain[D]` → `Y[B,D]`; `eps` is added to the mean square.
///
/// # Panics
/// If `X` does not consist of rows as wide as the gain.
#[must_use]
pub fn rms_norm<S: Scalar>(x: &[S], gain: &[S], eps: f64) -> Vec<S> {
    assert!(x.len().is_multiple_of(gain.len()), "X[{}] does not fit a gain of {}", x.len(), gain.len());
    let row = |x: &[S]| {
        let r = inverse_rms(x, eps);
        x.iter().zip(gain).map(|(&x, &gain)| x * r * gain).collect::<Vec<S>>()
    };
    x.chunks(gain.len()).flat_map(row).collect()
}

/// `X[B,D], gain[D], dY[B,D]` → `(dX[B,D], dgain[D])`.
///
/// # Panics
/// If `X` or `dY` does not consist of rows as wide as the gain, or one is longer than the other.
#[must_use]
pub fn rms_norm_backward<S: Scalar>(x: &[S], gain: &[S], dy: &[S], eps: f64) -> (Vec<S>, Vec<S>) {
    let width = gain.len();
    assert!(
        x.len() == dy.len() && x.len().is_multiple_of(width),
        "X[{}], dY[{}] do not fit a gain of {width}",
        x.len(),
        dy.len()
    );
    let (mut dx, mut dgain) = (Vec::new(), vec![S::ZERO; width]);
    for (x, dy) in x.chunks(width).zip(dy.chunks(width)) {
        let r = inverse_rms(x, eps);
        add(&mut dgain, x.iter().zip(dy).map(|(&x, &dy)| dy * x * r));
        let dn: Vec<S> = dy.iter().zip(gain).map(|(&dy, &gain)| dy * gain).collect(); // of n = X·r
        let pull = dot(&dn, x) * r * r * r * S::from_usize(width).inv();
        dx.extend(x.iter().zip(&dn).map(|(&x, &dn)| dn * r - x * pull));
    }
    (dx, dgain)
}

/// 1/√(mean(x²) + ε) of one token.
fn inverse_rms<S: Scalar>(x: &[S], eps: f64) -> S {
    (dot(x, x) * S::from_usize(x.len()).inv() + S::from_f64(eps)).rsqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    /// Kills: a sum instead of the mean, ε outside the root, ε left out, a mean over the batch, a forgotten
    /// gain.
    #[test]
    fn rms_norm_equals_the_formula_in_std_floats() {
        let (x, gain, eps) = ([3.0, -4.0, 1.0, 2.0, 0.5, -6.0], [1.0, -2.0, 0.5], 0.25);
        let mut wanted = Vec::new();
        for b in 0..2 {
            let mean = (0..3).map(|j| f64::powi(x[b * 3 + j], 2)).sum::<f64>() / 3.0;
            wanted.extend((0..3).map(|j| x[b * 3 + j] / (mean + eps).sqrt() * gain[j]));
        }
        assert_close(&rms_norm(&x, &gain, eps), &wanted, 1e-14);
        assert_close(&rms_norm(&[2.0, 2.0], &[1.0, 3.0], 0.0), &[1.0, 3.0], 1e-14);
    }

    /// Kills: a mean by a rounded `1/D`, which differs from the inverse in the field.
    #[test]
    fn rms_norm_of_equal_features_equals_that_of_one_exactly() {
        under_two_keys(|| {
            let (x, gain): (Vec<F61>, Vec<F61>) = (draw(4, 1), draw(5, 1));
            let one = rms_norm(&x, &gain, 1e-5)[0];
            assert_eq!(rms_norm(&[x[0]; 3], &[gain[0]; 3], 1e-5), [one; 3]);
        });
    }

    /// Kills: the mean square taken for a constant, a power of `r` lost, the `1/D` lost, `=` for `+=` on
    /// dgain.
    #[test]
    fn rms_norm_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (b, d, eps) in [(4, 5, 1e-5), (1, 1, 0.5), (3, 2, 0.0)] {
                let (x, gain, dy) = (draw(1, b * d), draw(2, d), draw(3, b * d));
                let (dx, dgain) = rms_norm_backward(&values(&x), &values(&gain), &dy, eps);
                assert_derivative(&dy, &rms_norm(&x, &gain, eps), &[(&x, &dx), (&gain, &dgain)]);
            }
        });
    }
}
