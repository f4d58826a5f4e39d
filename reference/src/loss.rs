//! Embedding of token ids, cross-entropy of target ids, and the mean squared error.
//!
//! Letters: `B` tokens, `D` features, `V` vocabulary; `N` targets that the loss is a mean over; of one row of
//! logits `z`, `lse = ln Σ exp(z)`; `ε` label smoothing, `λ` the weight of the z-loss.
//!
//! ```text
//! embed           X[B,D] = table[ids]               dtable[id] = Σ of dX over the tokens that are id
//! mean square     loss = Σ (X − Y)² / numbers       dX = 2·(X − Y) / numbers
//! cross-entropy   loss = Σ_B (lse − (1 − ε)·z_target − ε/V·Σ_V z + λ·lse²) / N
//!                 dz[B,V] = (softmax(z)·(1 + 2λ·lse) − (1 − ε)·onehot(target) − ε/V) / N
//! ```
//! Source: smoothing: Szegedy et al., §7, arXiv:1512.00567; z-loss: Chowdhery et al., `PaLM`, §5,
//! arXiv:2204.02311.
use crate::linear::add;
use crate::softmax::{log_sum_exp, softmax};
use shape::Objective;
use tensor::{IGNORED, Scalar};

/// `table[V,D]`, `ids[B]` → `X[B,D]`, with `D = width`.
///
/// # Panics
/// If an id lies outside the table.
#[must_use]
pub fn embed<S: Scalar>(table: &[S], ids: &[u32], width: usize) -> Vec<S> {
    ids.iter().flat_map(|&id| &table[id as usize * width..][..width]).copied().collect()
}

/// `dX[B,D]`, `ids[B]` → `dtable[V,D]`; the row of padding has no gradient.
///
/// # Panics
/// If `dX` does not hold one row for each id, or an id lies outside the vocabulary.
#[must_use]
pub fn embed_backward<S: Scalar>(
    dy: &[S],
    ids: &[u32],
    [vocabulary, width]: [usize; 2],
    padding: Option<usize>,
) -> Vec<S> {
    assert_eq!(dy.len(), ids.len() * width, "each id needs one row of dX");
    let mut table = vec![S::ZERO; vocabulary * width];
    for (dy, &id) in dy.chunks(width).zip(ids) {
        add(&mut table[id as usize * width..][..width], dy.iter().copied());
    }
    if let Some(id) = padding {
        table[id * width..][..width].fill(S::ZERO);
    }
    table
}

/// `logits[B,V]`, `targets[B]` → these tokens' addend of the mean loss, in nats; rows whose target is
/// [`IGNORED`] add nothing. `mean_over`: number of targets that the loss is a mean over in the whole step
/// (all its microbatches, all data ranks); 0 makes the loss 0.
///
/// # Panics
/// If there is not one row of logits for each target, or a target that is not ignored lies outside the
/// vocabulary.
#[must_use]
pub fn cross_entropy<S: Scalar>(
    logits: &[S],
    targets: &[u32],
    vocabulary: usize,
    mean_over: usize,
    objective: &Objective,
) -> S {
    assert_eq!(logits.len(), targets.len() * vocabulary, "each target needs one row of logits");
    let (share, mut loss) = (share(mean_over), S::ZERO);
    for (row, &target) in logits.chunks(vocabulary).zip(targets) {
        if target != IGNORED {
            loss += row_loss(row, target as usize, objective) * share;
        }
    }
    loss
}

/// `logits[B,V]`, `targets[B]` → `dlogits[B,V]` of [`cross_entropy`].
///
/// # Panics
/// As [`cross_entropy`].
#[must_use]
pub fn cross_entropy_backward<S: Scalar>(
    logits: &[S],
    targets: &[u32],
    vocabulary: usize,
    mean_over: usize,
    objective: &Objective,
) -> Vec<S> {
    assert_eq!(logits.len(), targets.len() * vocabulary, "each target needs one row of logits");
    let (share, mut d) = (share(mean_over), Vec::with_capacity(logits.len()));
    for (row, &target) in logits.chunks(vocabulary).zip(targets) {
        if target == IGNORED {
            d.extend(vec![S::ZERO; vocabulary]);
        } else {
            d.extend(row_backward(row, target as usize, objective).into_iter().map(|d| d * share));
        }
    }
    d
}

/// `X`, `Y` → these rows' addend of the mean of `(X − Y)²` over `numbers` elements, those of the whole step;
/// 0 makes the loss 0.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn mean_squared_error<S: Scalar>(x: &[S], y: &[S], numbers: usize) -> S {
    assert_eq!(x.len(), y.len(), "X and Y must have the same length");
    x.iter().zip(y).fold(S::ZERO, |sum, (&x, &y)| sum + (x - y) * (x - y)) * share(numbers)
}

/// `X`, `Y` → `dX` of [`mean_squared_error`].
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn mean_square_backward<S: Scalar>(x: &[S], y: &[S], numbers: usize) -> Vec<S> {
    assert_eq!(x.len(), y.len(), "X and Y must have the same length");
    x.iter().zip(y).map(|(&x, &y)| S::from_usize(2) * (x - y) * share(numbers)).collect()
}

/// Loss of one row. Terms with weight 0 are left out, not multiplied by 0, so that they raise no degree.
fn row_loss<S: Scalar>(z: &[S], target: usize, objective: &Objective) -> S {
    let lse = log_sum_exp(z);
    let mut loss = lse - z[target];
    if objective.smoothing != 0.0 {
        let sum = z.iter().fold(S::ZERO, |sum, &z| sum + z);
        loss += S::from_f64(objective.smoothing) * (z[target] - sum * S::from_usize(z.len()).inv());
    }
    if objective.z != 0.0 {
        loss += S::from_f64(objective.z) * lse * lse;
    }
    loss
}

/// Derivative of [`row_loss`].
fn row_backward<S: Scalar>(z: &[S], target: usize, objective: &Objective) -> Vec<S> {
    let mut d = softmax(z);
    if objective.z != 0.0 {
        let twice = S::from_usize(2) * S::from_f64(objective.z) * log_sum_exp(z);
        d = d.into_iter().map(|d| d * (S::ONE + twice)).collect();
    }
    let smoothing = S::from_f64(objective.smoothing);
    let even = smoothing * S::from_usize(z.len()).inv();
    d = d.into_iter().map(|d| d - even).collect();
    d[target] = d[target] - (S::ONE - smoothing);
    d
}

/// Returns 1/`mean_over`, or 0 if `mean_over` is 0.
pub(crate) fn share<S: Scalar>(mean_over: usize) -> S {
    if mean_over == 0 { S::ZERO } else { S::from_usize(mean_over).inv() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    const IDS: [u32; 5] = [3, 0, 3, 5, 0];

    /// Kills: rows selected by position, columns exchanged with rows.
    #[test]
    fn embed_equals_rows_of_the_table() {
        let table = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1];
        assert_close(&embed(&table, &[2, 0, 2], 2), &[2.0, 2.1, 0.0, 0.1, 2.0, 2.1], 0.0);
    }

    /// Kills: `=` for `+=` where a token occurs twice.
    #[test]
    fn embed_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let (table, dy) = (draw(1, 7 * 3), draw(2, 5 * 3));
            let d = embed_backward(&dy, &IDS, [7, 3], None);
            assert_derivative(&dy, &embed(&table, &IDS, 3), &[(&table, &d)]);
        });
    }

    /// Kills: another row without a gradient, padding with a gradient.
    #[test]
    fn padding_has_no_gradient_and_all_others_have_theirs() {
        under_two_keys(|| {
            let dy: Vec<F61> = draw(2, 5 * 3);
            let mut wanted = embed_backward(&dy, &IDS, [7, 3], None);
            assert!(wanted[9..12].iter().all(|d| *d != F61::ZERO), "3 is read twice");
            wanted[9..12].fill(F61::ZERO);
            assert_eq!(embed_backward(&dy, &IDS, [7, 3], Some(3)), wanted);
        });
    }

    const PLAIN: Objective = Objective { smoothing: 0.0, z: 0.0 };
    const ALL: [Objective; 4] = [
        PLAIN,
        Objective { smoothing: 0.125, z: 0.0 },
        Objective { smoothing: 0.0, z: 0.01 },
        Objective { smoothing: 0.3, z: 0.7 },
    ];

    /// Kills: a mean over the rows of this call, the wrong target, a missing stabiliser, smoothing that
    /// leaves out the target, smoothing by V − 1, a z-loss without its square, an ignored row that counts.
    #[test]
    fn cross_entropy_equals_the_formula_in_std_floats() {
        let logits: [f64; 12] = [0.2, -1.0, 3.0, 0.7, 9.0, 9.0, 9.0, 9.0, 1.5, 2.5, -0.5, 0.0];
        for Objective { smoothing, z } in ALL {
            let share = |row: &[f64], target: usize| -> f64 {
                let total = row.iter().map(|x| x.exp()).sum::<f64>();
                let wanted = |i| smoothing / 4.0 + if i == target { 1.0 - smoothing } else { 0.0 };
                let entropy = (0..4).map(|i| -wanted(i) * (row[i].exp() / total).ln()).sum::<f64>();
                (entropy + z * total.ln().powi(2)) / 5.0
            };
            let wanted = share(&logits[..4], 2) + share(&logits[8..], 0);
            let seen = cross_entropy(&logits, &[2, IGNORED, 0], 4, 5, &Objective { smoothing, z });
            assert_close(&[seen], &[wanted], 1e-14);
        }
        assert_close(&[cross_entropy(&[1000.0, 0.0], &[1], 2, 1, &PLAIN)], &[1000.0], 1e-12);
    }

    /// Kills: a factor `1/N` or `ε/V` rounded as a float, which differs from the inverse in the field.
    #[test]
    fn shares_of_a_loss_are_those_of_the_field_exactly() {
        under_two_keys(|| {
            let logits: Vec<F61> = draw(4, 5 * 7);
            let [whole, third] = [1, 3].map(|n| cross_entropy(&logits, &IDS, 7, n, &ALL[3]));
            assert_eq!(whole, third + third + third);
            // three equal logits x: lse = x + ln 3, so smoothing cancels
            let even = [logits[0]; 3];
            assert_eq!(cross_entropy(&even, &[1], 3, 1, &ALL[1]), cross_entropy(&even, &[1], 3, 1, &PLAIN));
        });
    }

    /// Kills: a missing one-hot, a wrong sign, another mean than the forward's, a term of the loss forgotten,
    /// a term without its factor, a gradient of an ignored row.
    #[test]
    fn cross_entropy_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let (logits, targets) = (draw(3, 5 * 7), [3, IGNORED, 3, 5, 0]);
            for objective in ALL {
                let d = cross_entropy_backward(&values(&logits), &targets, 7, 11, &objective);
                let loss = cross_entropy(&logits, &targets, 7, 11, &objective);
                assert_derivative(&[F61::ONE], &[loss], &[(&logits, &d)]);
                assert_eq!(d[7..14], [F61::ZERO; 7]);
            }
        });
    }

    /// Kills: 0/0 in a microbatch without tokens, 0/0 in a step without counted targets.
    #[test]
    fn no_token_no_loss() {
        assert_eq!(cross_entropy::<F61>(&[], &[], 4, 0, &PLAIN), F61::ZERO);
        assert_eq!(cross_entropy_backward::<F61>(&[], &[], 4, 0, &PLAIN), []);
        for (targets, mean_over) in [([IGNORED; 2], 0), ([IGNORED; 2], 3), ([0, 1], 0)] {
            let logits = [0.5, 1.0, -1.0, 2.0];
            assert_close(&[cross_entropy(&logits, &targets, 2, mean_over, &ALL[3])], &[0.0], 0.0);
            let d = cross_entropy_backward(&logits, &targets, 2, mean_over, &ALL[3]);
            assert_close(&d, &[0.0; 4], 0.0);
        }
    }
}
