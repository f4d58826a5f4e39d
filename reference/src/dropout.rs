//! Dropout: zeroes elements in training, and scales up the others.
//!
//! ```text
//! forward    Y = X·mask/(1 − rate)
//! backward  dX = dY·mask/(1 − rate)      the same mask: dropout is its own backward
//! ```
//! The mask comes from [`tensor::Dropout`]: a hash of the element's identity.
use crate::mask::Tokens;
use tensor::{Dropout, Scalar};

/// Place of a microbatch in a training run. Dropout depends on it and on the place in the model; the counts
/// scale the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// The run's seed.
    pub seed: u64,
    /// Number of steps done before.
    pub step: usize,
    /// Number of sequences of the same step before those of this microbatch.
    pub first_sequence: usize,
    /// Number of tokens that the step's loss is a mean over.
    pub mean_over: usize,
    /// Number of tokens of the step.
    pub tokens: usize,
}

/// Applies dropout to `X[B,width]` in place; the feature of an element is its column.
///
/// # Panics
/// If `X` does not hold one row for each token.
pub fn dropout<S: Scalar>(x: &mut [S], width: usize, tokens: &Tokens, d: &Dropout) {
    let (rows, scale) = (tokens.rows(), d.scale());
    assert_eq!(x.len(), rows.len() * width, "X must have {} rows of {width}", rows.len());
    for (x, (sequence, position)) in x.chunks_mut(width).zip(rows) {
        for (feature, x) in (0..).zip(x) {
            *x = if d.keeps(sequence, position, feature) { *x * scale } else { S::ZERO };
        }
    }
}

/// Returns the dropout at `site` in a pass; none if the rate is 0, or outside training.
pub(crate) fn dropout_at(pass: Option<Pass>, rate: f64, site: &str) -> Option<Dropout> {
    pass.filter(|_| rate != 0.0).map(|pass| Dropout::new(rate, pass.seed, pass.step, site))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys};

    fn tokens() -> Tokens {
        Tokens { lengths: vec![3, 0, 2], numbers: vec![6, 7, 2] }
    }

    /// Kills: a mask by row instead of sequence and position, the keep rate taken for the drop rate, no
    /// scale.
    #[test]
    fn dropout_takes_what_the_mask_says() {
        let (d, x): (_, Vec<f64>) = (Dropout::new(0.4, 1, 2, "here"), draw(1, 5 * 4));
        let (mut y, mut wanted) = (x.clone(), x);
        dropout(&mut y, 4, &tokens(), &d);
        for (r, (sequence, position)) in [(6, 0), (6, 1), (6, 2), (2, 0), (2, 1)].into_iter().enumerate() {
            for feature in 0..4 {
                let keeps = d.keeps(sequence, position, feature as u64);
                wanted[r * 4 + feature] *= if keeps { 1.0 / 0.6 } else { 0.0 };
            }
        }
        assert_close(&y, &wanted, 1e-15);
        assert!((1..20).contains(&y.iter().filter(|y| **y == 0.0).count()), "some go, some stay");
    }

    /// Kills: a mask in the backward that is not the forward's.
    #[test]
    fn dropout_is_its_own_backward_exactly() {
        under_two_keys(|| {
            let (x, dy, d) = (draw(2, 5 * 4), draw(3, 5 * 4), Dropout::new(0.5, 3, 0, "there"));
            let (mut y, mut dx) = (x.clone(), dy.clone());
            dropout(&mut y, 4, &tokens(), &d);
            dropout(&mut dx, 4, &tokens(), &d);
            assert_derivative(&dy, &y, &[(&x, &dx)]);
        });
    }

    /// Kills: dropout outside training, a pass that ignores its seed or its step.
    #[test]
    fn a_pass_has_dropout_where_there_is_a_rate() {
        let pass = Pass { seed: 3, step: 5, first_sequence: 9, mean_over: 4, tokens: 4 };
        assert_eq!(dropout_at(Some(pass), 0.25, "a"), Some(Dropout::new(0.25, 3, 5, "a")));
        assert_eq!((dropout_at(None, 0.25, "a"), dropout_at(Some(pass), 0.0, "a")), (None, None));
    }

    #[test]
    #[should_panic(expected = "X must have 5 rows of 4")]
    fn a_row_too_many_panics() {
        dropout(&mut [0.0; 24], 4, &tokens(), &Dropout::new(0.5, 0, 0, ""));
    }
}
