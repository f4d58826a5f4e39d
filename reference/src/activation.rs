//! The plain activations of the feed-forward layer, element by element; `gated.rs` holds those of two.
//!
//! Letters: `Φ`, `φ` the normal distribution and density; `s = sigmoid(a·(x + b·x³))`.
//!
//! ```text
//! gelu        h = x·Φ(x)           dx = dh·(Φ + x·φ)
//! gelu tanh   h = x·s              dx = dh·(s + x·s·(1 − s)·a·(1 + 3b·x²))
//! relu        h = x where x > 0    dx = dh where x > 0
//! ```
//! Source: Hendrycks, Gimpel, "Gaussian error linear units", arXiv:1606.08415; its tanh form is GPT-2's.
use shape::Activation;
use tensor::Scalar;

/// `X[N]` → `H[N]`.
#[must_use]
pub fn activate<S: Scalar>(x: &[S], f: Activation) -> Vec<S> {
    x.iter().map(|&x| x * gate(x, f).0).collect()
}

/// `X[N], dH[N]` → `dX[N]`.
///
/// # Panics
/// If there is not one `dH` for each `X`.
#[must_use]
pub fn activate_backward<S: Scalar>(x: &[S], dh: &[S], f: Activation) -> Vec<S> {
    assert_eq!(x.len(), dh.len(), "each X needs one dH");
    let slope = |x: S| {
        let (gate, slope) = gate(x, f);
        gate + x * slope
    };
    x.iter().zip(dh).map(|(&x, &dh)| dh * slope(x)).collect()
}

/// Returns the gate of `x` and the gate's derivative; every activation here is `x·gate(x)`.
pub(crate) fn gate<S: Scalar>(x: S, f: Activation) -> (S, S) {
    match f {
        Activation::Gelu => (x.normal_cdf(), x.normal_pdf()),
        Activation::GeluTanh => {
            let (a, b) = S::gelu_constants();
            let s = (a * (x + b * x * x * x)).sigmoid();
            (s, s * (S::ONE - s) * a * (S::ONE + S::from_usize(3) * b * x * x))
        }
        Activation::Relu => (x.step(), S::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use std::f64::consts::PI;

    const PLAIN: [Activation; 3] = [Activation::Gelu, Activation::GeluTanh, Activation::Relu];
    const X: [f64; 7] = [-3.0, -1.2, -0.3, 0.0, 0.4, 1.7, 5.0];

    /// Φ(x) by Simpson's rule from 0.
    fn normal(x: f64) -> f64 {
        let (n, density) = (2000, |t: f64| (-t * t / 2.0).exp() / (2.0 * PI).sqrt());
        let weight = |i| if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        let h = x / f64::from(n);
        0.5 + h / 3.0 * (0..=n).map(|i| weight(i) * density(f64::from(i) * h)).sum::<f64>()
    }

    /// Kills: one activation taken for another, a wrong constant, the gate without its x.
    #[test]
    fn activations_equal_their_formulas_in_std_floats() {
        assert_close(&activate(&X, Activation::Gelu), &X.map(|x| x * normal(x)), 1e-13);
        let tanh = |x: f64| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
        assert_close(&activate(&X, Activation::GeluTanh), &X.map(tanh), 1e-14);
        assert_close(&activate(&X, Activation::Relu), &X.map(|x| x.max(0.0)), 0.0);
    }

    /// Kills: a formula that is equally wrong in duals and in the backward.
    #[test]
    fn activate_backward_equals_central_differences() {
        for (f, h) in PLAIN.into_iter().zip([1e-5; 3]) {
            let x = X.map(|x| x + 0.01); // away from the corner of ReLU
            let [above, below] = [h, -h].map(|h| activate(&x.map(|x| x + h), f));
            let slopes: Vec<f64> = above.iter().zip(below).map(|(a, b)| (a - b) / (2.0 * h)).collect();
            assert_close(&activate_backward(&x, &[1.0; 7], f), &slopes, 1e-9);
        }
    }

    /// Kills: a term of a derivative lost, a square or the factor 3 of the inner derivative lost.
    #[test]
    fn activate_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for f in PLAIN {
                let (x, dh) = (draw(1, 6), draw(2, 6));
                assert_derivative(&dh, &activate(&x, f), &[(&x, &activate_backward(&values(&x), &dh, f))]);
            }
        });
    }
}
