//! Linear layer without bias.
//!
//! Letters: `B` tokens, `I` inputs, `O` outputs.
//!
//! ```text
//! forward    Y[B,O] = X[B,I] · W[I,O]
//! backward  dX[B,I] = dY[B,O] · W[I,O]ᵀ
//!           dW[I,O] = X[B,I]ᵀ · dY[B,O]
//! ```
use tensor::Scalar;

/// `X[B,I], W[I,O]` → `Y[B,O]`.
///
/// # Panics
/// If a length does not fit `[I, O]`.
#[must_use]
pub fn linear<S: Scalar>(x: &[S], w: &[S], [i, o]: [usize; 2]) -> Vec<S> {
    assert!(
        x.len().is_multiple_of(i) && w.len() == i * o,
        "X[{}], W[{}] do not fit [{i}, {o}]",
        x.len(),
        w.len()
    );
    let mut y = vec![S::ZERO; x.len() / i * o];
    for (x, y) in x.chunks(i).zip(y.chunks_mut(o)) {
        for (&x, w) in x.iter().zip(w.chunks(o)) {
            add(y, w.iter().map(|&w| x * w));
        }
    }
    y
}

/// `X[B,I], W[I,O], dY[B,O]` → `(dX[B,I], dW[I,O])`.
///
/// # Panics
/// If a length does not fit `[I, O]`.
#[must_use]
pub fn linear_backward<S: Scalar>(x: &[S], w: &[S], dy: &[S], [i, o]: [usize; 2]) -> (Vec<S>, Vec<S>) {
    assert!(
        x.len() * o == dy.len() * i && w.len() == i * o,
        "X[{}], dY[{}] or W do not fit [{i}, {o}]",
        x.len(),
        dy.len()
    );
    let mut dw = vec![S::ZERO; i * o];
    for (x, dy) in x.chunks(i).zip(dy.chunks(o)) {
        for (&x, dw) in x.iter().zip(dw.chunks_mut(o)) {
            add(dw, dy.iter().map(|&dy| x * dy));
        }
    }
    (linear(dy, &transpose(w, [i, o]), [o, i]), dw)
}

/// `W[I,O]` → `Wᵀ[O,I]`.
pub(crate) fn transpose<S: Scalar>(w: &[S], [i, o]: [usize; 2]) -> Vec<S> {
    (0..i * o).map(|at| w[at % i * o + at / i]).collect()
}

/// `to += from`, element by element.
pub(crate) fn add<S: Scalar>(to: &mut [S], from: impl IntoIterator<Item = S>) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Σ aᵢ·bᵢ.
pub(crate) fn dot<S: Scalar>(a: &[S], b: &[S]) -> S {
    a.iter().zip(b).fold(S::ZERO, |sum, (&a, &b)| sum + a * b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};

    /// Kills: a transposed weight, a sum over the wrong dimension.
    #[test]
    fn linear_equals_a_product_worked_out_by_hand() {
        let y = linear(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0, 9.0, 10.0], [2, 3]);
        assert_close(&y, &[21.0, 24.0, 27.0, 47.0, 54.0, 61.0], 0.0);
        assert_close(
            &transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]),
            &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0],
            0.0,
        );
    }

    /// Kills: a weight not transposed in the backward, `=` for `+=` on dW, dX and dW exchanged.
    #[test]
    fn linear_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (b, i, o) in [(5, 4, 3), (1, 1, 7), (2, 3, 3)] {
                let (x, w, dy) = (draw(1, b * i), draw(2, i * o), draw(3, b * o));
                let (dx, dw) = linear_backward(&values(&x), &values(&w), &dy, [i, o]);
                assert_derivative(&dy, &linear(&x, &w, [i, o]), &[(&x, &dx), (&w, &dw)]);
            }
        });
    }

    #[test]
    #[should_panic(expected = "do not fit [2, 3]")]
    fn a_weight_of_another_shape_panics() {
        let _ = linear(&[1.0, 2.0], &[1.0; 8], [2, 3]);
    }
}
