//! Where token ids come in: the embedding that reads them, and the cross-entropy that judges by them.
//!
//! Letters: `B` tokens, `D` features, `V` vocabulary; `N` the tokens that the loss is a mean over.
//!
//! ```text
//! embed           X[B,D] = table[ids]                       dtable[id] = Σ of dX over the tokens that are id
//! cross-entropy   loss   = Σ_B (lse(logits) − logit of the target) / N
//!                 dlogits[B,V] = (softmax(logits) − onehot(target)) / N
//! ```
use crate::linear::add;
use crate::softmax::{log_sum_exp, softmax};
use tensor::Scalar;

/// `table[V,D]`, `ids[B]` → `X[B,D]`, with `D = width`.
///
/// # Panics
/// If an id lies outside the table.
#[must_use]
pub fn embed<S: Scalar>(table: &[S], ids: &[u32], width: usize) -> Vec<S> {
    ids.iter().flat_map(|&id| &table[id as usize * width..][..width]).copied().collect()
}

/// `dX[B,D]`, `ids[B]` → `dtable[V,D]`, with `V = vocabulary`.
///
/// # Panics
/// If `dX` does not hold one row for each id, or an id lies outside the vocabulary.
#[must_use]
pub fn embed_backward<S: Scalar>(dy: &[S], ids: &[u32], width: usize, vocabulary: usize) -> Vec<S> {
    assert_eq!(dy.len(), ids.len() * width, "a row of dX for each id");
    let mut table = vec![S::ZERO; vocabulary * width];
    for (dy, &id) in dy.chunks(width).zip(ids) {
        add(&mut table[id as usize * width..][..width], dy.iter().copied());
    }
    table
}

/// `logits[B,V]`, `targets[B]` → these tokens' share of the mean loss, in nats. `tokens`: how many the loss
/// is a mean over, of the whole step: all its microbatches and all data ranks. No rows: 0.
///
/// # Panics
/// If there is not one row of logits for each target, or a target lies outside the vocabulary.
#[must_use]
pub fn cross_entropy<S: Scalar>(logits: &[S], targets: &[u32], vocabulary: usize, tokens: usize) -> S {
    assert_eq!(logits.len(), targets.len() * vocabulary, "a row of logits for each target");
    let rows = logits.chunks(vocabulary).zip(targets);
    rows.fold(S::ZERO, |loss, (row, &target)| {
        loss + (log_sum_exp(row) - row[target as usize]) * S::from_usize(tokens).inv()
    })
}

/// `logits[B,V]`, `targets[B]` → `dlogits[B,V]` of [`cross_entropy`].
///
/// # Panics
/// If there is not one row of logits for each target, or a target lies outside the vocabulary.
#[must_use]
pub fn cross_entropy_backward<S: Scalar>(
    logits: &[S],
    targets: &[u32],
    vocabulary: usize,
    tokens: usize,
) -> Vec<S> {
    assert_eq!(logits.len(), targets.len() * vocabulary, "a row of logits for each target");
    let mut d = Vec::with_capacity(logits.len());
    for (row, &target) in logits.chunks(vocabulary).zip(targets) {
        let mut p = softmax(row);
        p[target as usize] = p[target as usize] - S::ONE;
        d.extend(p.into_iter().map(|p| p * S::from_usize(tokens).inv()));
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    const IDS: [u32; 5] = [3, 0, 3, 5, 0];

    /// Kills: rows by position, columns for rows.
    #[test]
    fn embed_equals_rows_of_the_table() {
        let table = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1];
        assert_close(&embed(&table, &[2, 0, 2], 2), &[2.0, 2.1, 0.0, 0.1, 2.0, 2.1], 0.0);
    }

    /// Kills: `=` for `+=` where a token comes twice.
    #[test]
    fn embed_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let (table, dy) = (draw(1, 7 * 3), draw(2, 5 * 3));
            let d = embed_backward(&dy, &IDS, 3, 7);
            assert_derivative(&dy, &embed(&table, &IDS, 3), &[(&table, &d)]);
        });
    }

    /// Kills: a mean over the rows at hand, the wrong target, a missing stabiliser.
    #[test]
    fn cross_entropy_equals_minus_ln_softmax_in_std_floats() {
        let (logits, targets): ([f64; 8], _) = ([0.2, -1.0, 3.0, 0.7, 1.5, 2.5, -0.5, 0.0], [2, 0]);
        let share = |row: &[f64], target: usize| -> f64 {
            -(row[target].exp() / row.iter().map(|x| x.exp()).sum::<f64>()).ln() / 5.0
        };
        let wanted = share(&logits[..4], 2) + share(&logits[4..], 0);
        assert_close(&[cross_entropy(&logits, &targets, 4, 5)], &[wanted], 1e-15);
        assert_close(&[cross_entropy(&[1000.0, 0.0], &[1], 2, 1)], &[1000.0], 1e-12);
    }

    /// Kills: a share `1/N` rounded as a float, which the field tells from the inverse.
    #[test]
    fn cross_entropy_of_n_tokens_equals_an_nth_exactly() {
        under_two_keys(|| {
            let logits: Vec<F61> = draw(4, 5 * 7);
            let [whole, third] = [1, 3].map(|tokens| cross_entropy(&logits, &IDS, 7, tokens));
            assert_eq!(whole, third + third + third);
        });
    }

    /// Kills: a missing one-hot, the sign, another mean than the forward's.
    #[test]
    fn cross_entropy_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let logits = draw(3, 5 * 7);
            let d = cross_entropy_backward(&values(&logits), &IDS, 7, 11);
            assert_derivative(&[F61::ONE], &[cross_entropy(&logits, &IDS, 7, 11)], &[(&logits, &d)]);
        });
    }

    /// Kills: 0/0 where a microbatch holds no token.
    #[test]
    fn no_token_no_loss() {
        assert_eq!(cross_entropy::<F61>(&[], &[], 4, 0), F61::ZERO);
        assert_eq!(cross_entropy_backward::<F61>(&[], &[], 4, 0), []);
    }
}
