//! Attention of grouped heads over sequences of different lengths: tokens attend to tokens of their own
//! sequence.
//!
//! Letters: `B` tokens of all sequences; rows `[Q | K | V]`. Forward and backward of a query are in
//! `look.rs`.
//!
//! Source: Vaswani et al., arXiv:1706.03762; grouped heads: Ainslie et al., arXiv:2305.13245.
use crate::look::{Look, ScoreRules};
use crate::mask::Tokens;
use shape::Heads;
use tensor::{Dropout, Scalar};

/// `qkv[B, row]` → `O[B, queries·value]`. `dropout`: of the probabilities, if there is any.
///
/// # Panics
/// If the KV heads do not divide the query heads, there is not one row for each token, or a query sees no
/// key.
#[must_use]
pub fn attention<'a, S: Scalar, R: Into<ScoreRules<'a, S>>>(
    qkv: &[S],
    heads: Heads,
    rules: R,
    tokens: &'a Tokens,
    dropout: Option<&'a Dropout>,
) -> Vec<S> {
    look(qkv, heads, rules.into(), tokens, dropout).forward()
}

/// `qkv[B, row], dO[B, queries·value]` → `[dQ | dK | dV][B, row]`.
///
/// # Panics
/// As [`attention`], and if `dO` has another number of rows.
#[must_use]
pub fn attention_backward<'a, S: Scalar, R: Into<ScoreRules<'a, S>>>(
    qkv: &[S],
    d_o: &[S],
    heads: Heads,
    rules: R,
    tokens: &'a Tokens,
    dropout: Option<&'a Dropout>,
) -> Vec<S> {
    let [dqkv, _] = attention_gradients(qkv, d_o, heads, rules.into(), tokens, dropout);
    dqkv
}

/// Computes the gradients of [`attention_backward`], and of the sinks.
pub(crate) fn attention_gradients<S: Scalar>(
    qkv: &[S],
    d_o: &[S],
    heads: Heads,
    rules: ScoreRules<S>,
    tokens: &Tokens,
    dropout: Option<&Dropout>,
) -> [Vec<S>; 2] {
    let [dq, dkv, dsinks] = look(qkv, heads, rules, tokens, dropout).backward(d_o);
    let q = heads.queries * heads.dim;
    let rows = dq.chunks(q).zip(dkv.chunks(heads.row() - q));
    [rows.flat_map(|(dq, dkv)| dq.iter().chain(dkv).copied()).collect(), dsinks]
}

/// Lets the queries of rows `[Q | K | V]` attend to the keys of their own sequence.
fn look<'a, S: Scalar>(
    qkv: &[S],
    heads: Heads,
    rules: ScoreRules<'a, S>,
    tokens: &'a Tokens,
    dropout: Option<&'a Dropout>,
) -> Look<'a, S> {
    assert!(
        qkv.len().is_multiple_of(heads.row()),
        "{} elements do not form rows [Q | K | V] of {heads:?}",
        qkv.len()
    );
    let rows = qkv.chunks(heads.row()).map(|row| row.split_at(heads.queries * heads.dim));
    let (q, kv): (Vec<&[S]>, Vec<&[S]>) = rows.unzip();
    let dropout = dropout.map(|dropout| (dropout, tokens.numbers.as_slice()));
    Look { q: q.concat(), kv: kv.concat(), heads, lengths: [&tokens.lengths; 2], rules, dropout }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Mask;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    /// Causal, without dropout.
    fn causal<S: Scalar>(qkv: &[S], heads: Heads, lengths: &[usize]) -> Vec<S> {
        attention(qkv, heads, Mask::Causal, &Tokens::new(lengths), None)
    }

    const GROUPED: Heads = Heads::new(4, 2, 3);
    const CASES: [Mask; 4] =
        [Mask::All, Mask::Causal, Mask::Window { size: 2, sinks: 0 }, Mask::Window { size: 1, sinks: 2 }];

    /// Kills: a missing scale, keys and values exchanged, a first token that sees the second.
    #[test]
    fn attention_equals_two_tokens_worked_out_by_hand() {
        let heads = Heads::new(1, 1, 4);
        let first = [1.0, 0.0, 2.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
        let second = [2.0, 1.0, 0.0, 1.0, 1.0, 1.0, 9.0, 3.0, -1.0, 0.0, 1.0, 5.0];
        // scores of the second token: 2·0.5 + 1·0.5 = 1.5 and 2 + 1 + 3 = 6, over √4
        let p = 1.0 / (1.0 + f64::exp(3.0 - 0.75));
        let q = 1.0 - p;
        let wanted = [1.0, 2.0, 3.0, 4.0, p - q, 2.0 * p, 3.0 * p + q, 4.0 * p + 5.0 * q];
        assert_close(&causal(&[first, second].concat(), heads, &[2]), &wanted, 1e-14);
    }

    /// Kills: a scale computed as a float, a scale of another dimension, a scale applied twice.
    #[test]
    fn attention_equals_two_tokens_in_the_field_exactly() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(5, 2 * 3); // one head of one feature: rows [q, k, v]
            let score = |j: usize| x[3] * x[3 * j + 1] * F61::inv_sqrt(1);
            let e = F61::exp_sub(score(0), score(1));
            let second = (e * x[2] + x[5]) * (e + F61::ONE).inv();
            assert_eq!(causal(&x, Heads::new(1, 1, 1), &[2]), [x[2], second]);
        });
    }

    /// Kills: query heads that read the wrong group's keys or values, heads at the wrong place of the output.
    #[test]
    fn attention_of_groups_equals_each_head_by_itself() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(1, 3 * GROUPED.row());
            let o = causal(&x, GROUPED, &[3]);
            for (h, group) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
                let alone: Vec<F61> = x
                    .chunks(GROUPED.row())
                    .flat_map(|row| [h, 4 + group, 6 + group].map(|at| row[at * 3..][..3].to_vec()).concat())
                    .collect();
                let wanted = causal(&alone, Heads::new(1, 1, 3), &[3]);
                for r in 0..3 {
                    assert_eq!(o[r * 12 + h * 3..][..3], wanted[r * 3..][..3], "token {r}, head {h}");
                }
            }
        });
    }

    /// Kills: a mask by row instead of sequence, by key instead of query, or by group instead of head; a
    /// softmax over the scores that dropout left, sinks of another sequence, a dropout mask that is not
    /// scaled.
    #[test]
    fn attention_equals_the_formula_in_std_floats() {
        let (row, tokens) = (GROUPED.row(), Tokens { lengths: vec![4, 0, 3], numbers: vec![5, 1, 3] });
        let (x, d): (Vec<f64>, _) = (draw(6, 7 * row), Dropout::new(0.4, 1, 2, "scores"));
        for (mask, dropout) in CASES.map(|mask| [(mask, None), (mask, Some(&d))]).concat() {
            let (mut wanted, mut dropped) = (Vec::new(), 0);
            for (first, p, number) in (0..7).map(|r| if r < 4 { (0, r, 5) } else { (4, r - 4, 3) }) {
                let length = if first == 0 { 4 } else { 3 };
                let seen = || (0..length).filter(|&k| mask.sees(p, k));
                for h in 0..4 {
                    let part = |at: usize, head: usize| &x[(first + at) * row + head * 3..][..3];
                    let inner =
                        |k| part(p, h).iter().zip(part(k, 4 + h / 2)).map(|(q, k)| q * k).sum::<f64>();
                    let weight = |k| f64::exp(inner(k) / 3f64.sqrt());
                    let total: f64 = seen().map(weight).sum();
                    let stays = |k| dropout.is_none_or(|d| d.keeps(number, p, Dropout::pair(h, k)));
                    dropped += seen().filter(|&k| !stays(k)).count();
                    let scale = if dropout.is_some() { 1.0 / 0.6 } else { 1.0 };
                    let share = |k| if stays(k) { weight(k) / total * scale } else { 0.0 };
                    wanted.extend(
                        (0..3).map(|c| seen().map(|k| share(k) * part(k, 6 + h / 2)[c]).sum::<f64>()),
                    );
                }
            }
            assert_close(&attention(&x, GROUPED, mask, &tokens, dropout), &wanted, 1e-14);
            assert_eq!(dropout.is_some(), dropped > 5, "{dropped} dropped");
        }
    }

    /// Kills: attention to the sequence before or after, a missing sequence.
    #[test]
    fn attention_of_packed_sequences_equals_each_sequence_by_itself() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(2, 6 * GROUPED.row());
            let (tokens, d) = (Tokens::new(&[1, 3, 0, 2]), Dropout::new(0.3, 4, 5, "scores"));
            for (mask, dropout) in CASES.map(|mask| [(mask, None), (mask, Some(&d))]).concat() {
                let (mut alone, mut at) = (Vec::new(), 0);
                for (&length, &number) in tokens.lengths.iter().zip(&tokens.numbers) {
                    let rows = &x[at..][..length * GROUPED.row()];
                    let one = Tokens { lengths: vec![length], numbers: vec![number] };
                    alone.extend(attention(rows, GROUPED, mask, &one, dropout));
                    at += rows.len();
                }
                assert_eq!(attention(&x, GROUPED, mask, &tokens, dropout), alone);
                assert_eq!(alone.len(), 6 * 12);
            }
        });
    }

    /// Kills: a scale lost in the backward, a softmax without its mean, `=` for `+=` where query heads share
    /// a key, a mask lost or applied twice in the backward, other keys than the forward's.
    #[test]
    fn attention_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let shapes = [(GROUPED, [2, 4, 1]), (Heads::new(3, 3, 1), [3, 0, 2])];
            let d = Dropout::new(0.4, 4, 5, "scores");
            let cases = CASES.map(|mask| [(mask, None), (mask, Some(&d))]).concat();
            for (heads, lengths) in shapes {
                let (rows, tokens): (usize, _) = (lengths.iter().sum(), Tokens::new(&lengths));
                let (x, d_o) = (draw(3, rows * heads.row()), draw(4, rows * heads.gathered()));
                for &(mask, dropout) in &cases {
                    let d = attention_backward(&values(&x), &d_o, heads, mask, &tokens, dropout);
                    assert_derivative(&d_o, &attention(&x, heads, mask, &tokens, dropout), &[(&x, &d)]);
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "must divide")]
    fn key_heads_that_do_not_divide_panic() {
        let heads = Heads::new(3, 2, 1);
        let _ = causal(&[0.0; 7], heads, &[1]);
    }

    #[test]
    #[should_panic(expected = "query 0 of sequence 0 sees no key")]
    fn a_window_of_nothing_panics() {
        let (heads, mask) = (Heads::new(1, 1, 1), Mask::Window { size: 0, sinks: 0 });
        let _ = attention(&[0.0; 3], heads, mask, &Tokens::new(&[1]), None);
    }
}
