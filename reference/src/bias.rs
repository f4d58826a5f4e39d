//! Bias: one value per feature, added to every row.
//!
//! ```text
//! forward    Y[B,O] += bias[O]
//! backward  dbias[O] = Σ_B dY[B,O]
//! ```
use crate::linear::add;
use tensor::Scalar;

/// `Y[B,O] += bias[O]`.
///
/// # Panics
/// If `Y` does not consist of rows as wide as the bias.
pub fn add_bias<S: Scalar>(y: &mut [S], bias: &[S]) {
    assert!(y.len().is_multiple_of(bias.len()), "Y[{}] does not fit a bias of {}", y.len(), bias.len());
    y.chunks_mut(bias.len()).for_each(|y| add(y, bias.iter().copied()));
}

/// `dY[B,O]` → `dbias[O]`, with `O = width`.
///
/// # Panics
/// If `dY` does not consist of rows of this width.
#[must_use]
pub fn bias_gradient<S: Scalar>(dy: &[S], width: usize) -> Vec<S> {
    assert!(dy.len().is_multiple_of(width), "dY[{}] does not fit a width of {width}", dy.len());
    let mut bias = vec![S::ZERO; width];
    dy.chunks(width).for_each(|dy| add(&mut bias, dy.iter().copied()));
    bias
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys};

    /// Kills: a bias added to the first row only, rows exchanged with columns.
    #[test]
    fn bias_equals_sums_worked_out_by_hand() {
        let mut y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        add_bias(&mut y, &[10.0, 20.0, 30.0]);
        assert_close(&y, &[11.0, 22.0, 33.0, 14.0, 25.0, 36.0], 0.0);
        assert_close(&bias_gradient(&y, 3), &[25.0, 47.0, 69.0], 0.0);
    }

    /// Kills: `=` for `+=` on dbias.
    #[test]
    fn bias_gradient_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let (bias, mut y, dy) = (draw(1, 3), draw(2, 4 * 3), draw(3, 4 * 3));
            let x = y.clone();
            add_bias(&mut y, &bias);
            assert_derivative(&dy, &y, &[(&x, &dy), (&bias, &bias_gradient(&dy, 3))]);
        });
    }

    /// Checks a rank whose local batch is empty.
    #[test]
    fn no_row_no_gradient() {
        assert_close(&bias_gradient(&[], 2), &[0.0, 0.0], 0.0);
    }

    #[test]
    #[should_panic(expected = "does not fit a bias of 3")]
    fn a_bias_of_another_width_panics() {
        add_bias(&mut [0.0; 4], &[0.0; 3]);
    }
}
