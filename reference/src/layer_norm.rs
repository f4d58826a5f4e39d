//! Layer norm: each token's features less their mean, divided by their deviation, times a gain, plus a bias.
//!
//! Letters: `B` tokens, `D` features; of one token `c = x − mean(x)`, and `r = 1/√(mean(c²) + ε)`.
//!
//! ```text
//! forward     Y = c·r·gain + bias               the root-mean-square norm of c, plus the bias
//! backward   dX = dc − mean(dc)                 as c is linear in x by a symmetric matrix
//!         dbias = Σ_B dY
//! ```
//! Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450. Built on `norm.rs`.
use crate::bias::{add_bias, bias_gradient};
use crate::norm::{rms_norm, rms_norm_backward};
use tensor::Scalar;

/// `X[B,D], gain[D], bias[D]` → `Y[B,D]`; `eps` is added to the variance.
///
/// # Panics
/// If `X` does not consist of rows as wide as the gain, or the bias is not as wide.
#[must_use]
pub fn layer_norm<S: Scalar>(x: &[S], gain: &[S], bias: &[S], eps: f64) -> Vec<S> {
    assert_eq!(gain.len(), bias.len(), "the bias must be as wide as the gain");
    let mut y = rms_norm(&less_mean(x, gain.len()), gain, eps);
    add_bias(&mut y, bias);
    y
}

/// `X[B,D], gain[D], dY[B,D]` → `(dX[B,D], dgain[D], dbias[D])`.
///
/// # Panics
/// If `X` or `dY` does not consist of rows as wide as the gain, or one is longer than the other.
#[must_use]
pub fn layer_norm_backward<S: Scalar>(x: &[S], gain: &[S], dy: &[S], eps: f64) -> (Vec<S>, Vec<S>, Vec<S>) {
    let (dc, dgain) = rms_norm_backward(&less_mean(x, gain.len()), gain, dy, eps);
    (less_mean(&dc, gain.len()), dgain, bias_gradient(dy, gain.len()))
}

/// Subtracts each row's mean.
fn less_mean<S: Scalar>(x: &[S], width: usize) -> Vec<S> {
    let row = |x: &[S]| {
        let mean = x.iter().fold(S::ZERO, |sum, &x| sum + x) * S::from_usize(width).inv();
        x.iter().map(|&x| x - mean).collect::<Vec<S>>()
    };
    x.chunks(width).flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    /// Kills: the root mean square instead of the deviation, a variance over D − 1, ε outside the root, a
    /// lost bias.
    #[test]
    fn layer_norm_equals_the_formula_in_std_floats() {
        let (x, gain, bias, eps) =
            ([3.0, -4.0, 1.0, 2.0, 0.5, -6.0], [1.0, -2.0, 0.5], [0.25, 3.0, -1.0], 0.25);
        let mut wanted = Vec::new();
        for x in x.chunks(3) {
            let mean = x.iter().sum::<f64>() / 3.0;
            let variance = x.iter().map(|x| f64::powi(x - mean, 2)).sum::<f64>() / 3.0;
            wanted.extend((0..3).map(|j| (x[j] - mean) / (variance + eps).sqrt() * gain[j] + bias[j]));
        }
        assert_close(&layer_norm(&x, &gain, &bias, eps), &wanted, 1e-14);
    }

    /// Kills: a mean by a rounded `1/D`, which differs from the inverse in the field.
    #[test]
    fn layer_norm_of_equal_features_equals_its_bias_exactly() {
        under_two_keys(|| {
            let (x, gain, bias): (Vec<F61>, Vec<F61>, Vec<F61>) = (draw(4, 1), draw(5, 3), draw(6, 3));
            assert_eq!(layer_norm(&[x[0]; 3], &gain, &bias, 1e-5), bias);
        });
    }

    /// Kills: the mean taken for a constant, a mean taken before or after the wrong factor, gradients
    /// exchanged.
    #[test]
    fn layer_norm_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (b, d, eps) in [(4, 5, 1e-5), (2, 1, 0.5), (3, 2, 0.0)] {
                let (x, gain, bias, dy) = (draw(1, b * d), draw(2, d), draw(7, d), draw(3, b * d));
                let (dx, dgain, dbias) = layer_norm_backward(&values(&x), &values(&gain), &dy, eps);
                let inputs: [(&[_], &[_]); 3] = [(&x, &dx), (&gain, &dgain), (&bias, &dbias)];
                assert_derivative(&dy, &layer_norm(&x, &gain, &bias, eps), &inputs);
            }
        });
    }

    #[test]
    #[should_panic(expected = "the bias must be as wide")]
    fn a_bias_of_another_width_panics() {
        let _ = layer_norm(&[0.0; 4], &[1.0; 2], &[1.0], 1.0);
    }
}
