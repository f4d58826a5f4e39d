//! Causal attention of grouped heads over sequences of different lengths.
//!
//! Letters: `B` tokens of all sequences, `q` query heads, `k` key heads, `d` features a head; rows
//! `[Q(q·d) | K(k·d) | V(k·d)]`; query head `h` reads key and value head `⌊h·k/q⌋`. For one token and one head,
//! with `j` over the tokens of its sequence up to itself:
//!
//! ```text
//! forward   p = softmax(Q·Kⱼ/√d)                   O = Σ pⱼ·Vⱼ
//! backward  dsⱼ = pⱼ·(dO·Vⱼ − Σᵢ pᵢ·dO·Vᵢ)/√d      dQ = Σ dsⱼ·Kⱼ   dKⱼ += dsⱼ·Q   dVⱼ += pⱼ·dO
//! ```
//! Source: Vaswani et al., arXiv:1706.03762; grouped heads: Ainslie et al., arXiv:2305.13245.
use crate::linear::{add, dot};
use crate::softmax::softmax;
use std::ops::Range;
use tensor::Scalar;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key heads, and as many value heads; they divide the query heads.
    pub keys: usize,
    /// Features a head.
    pub dim: usize,
}

impl Heads {
    /// Features of a row `[Q | K | V]`: `(queries + 2·keys)·dim`.
    pub fn row(self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
    }
    /// Where the query of head `h` of token `r` lies in the rows.
    fn query(self, r: usize, h: usize) -> Range<usize> {
        self.part(r, h)
    }
    /// Where the key lies that query head `h` reads of token `r`.
    fn key(self, r: usize, h: usize) -> Range<usize> {
        self.part(r, self.queries + h * self.keys / self.queries)
    }
    /// Where the value lies that query head `h` reads of token `r`.
    fn value(self, r: usize, h: usize) -> Range<usize> {
        self.part(r, self.queries + self.keys + h * self.keys / self.queries)
    }
    fn part(self, r: usize, head: usize) -> Range<usize> {
        let from = r * self.row() + head * self.dim;
        from..from + self.dim
    }
}

/// `qkv[B, row]` → `O[B, queries·dim]`. `lengths`: tokens of each sequence, whose rows lie one sequence after the
/// other.
///
/// # Panics
/// If the key heads do not divide the query heads, or the rows are not as many as the lengths say.
#[must_use]
pub fn attention<S: Scalar>(qkv: &[S], heads: Heads, lengths: &[usize]) -> Vec<S> {
    check(qkv, heads, lengths);
    let mut o = Vec::with_capacity(qkv.len());
    for (first, r) in tokens(lengths) {
        for h in 0..heads.queries {
            let mut head = vec![S::ZERO; heads.dim];
            for (j, p) in (first..).zip(probabilities(qkv, heads, h, first, r)) {
                add(&mut head, qkv[heads.value(j, h)].iter().map(|&v| p * v));
            }
            o.extend(head);
        }
    }
    o
}

/// `qkv[B, row], dO[B, queries·dim]` → `[dQ | dK | dV][B, row]`.
///
/// # Panics
/// If the key heads do not divide the query heads, or the rows are not as many as the lengths say.
#[must_use]
pub fn attention_backward<S: Scalar>(qkv: &[S], d_o: &[S], heads: Heads, lengths: &[usize]) -> Vec<S> {
    check(qkv, heads, lengths);
    assert_eq!(d_o.len() * heads.row(), qkv.len() * heads.queries * heads.dim, "a row of dO for each of qkv");
    let (scale, mut d) = (S::inv_sqrt(heads.dim), vec![S::ZERO; qkv.len()]);
    for (first, r) in tokens(lengths) {
        for h in 0..heads.queries {
            let d_o = &d_o[(r * heads.queries + h) * heads.dim..][..heads.dim];
            let p = probabilities(qkv, heads, h, first, r);
            let dp: Vec<S> = (first..=r).map(|j| dot(d_o, &qkv[heads.value(j, h)])).collect();
            let mean = dot(&p, &dp);
            for (j, (&p, &dp)) in (first..).zip(p.iter().zip(&dp)) {
                let ds = p * (dp - mean) * scale;
                add(&mut d[heads.query(r, h)], qkv[heads.key(j, h)].iter().map(|&k| ds * k));
                add(&mut d[heads.key(j, h)], qkv[heads.query(r, h)].iter().map(|&q| ds * q));
                add(&mut d[heads.value(j, h)], d_o.iter().map(|&d_o| p * d_o));
            }
        }
    }
    d
}

fn check<S: Scalar>(qkv: &[S], heads: Heads, lengths: &[usize]) {
    assert!(heads.queries.is_multiple_of(heads.keys), "the key heads divide the query heads: {heads:?}");
    let tokens = lengths.iter().sum::<usize>();
    assert_eq!(qkv.len(), tokens * heads.row(), "{tokens} rows [Q | K | V] of {heads:?}");
}

/// `(first, r)` for every token: the first row of its sequence, and its own.
fn tokens(lengths: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    lengths
        .iter()
        .scan(0, |end, &length| {
            let first = *end;
            *end += length;
            Some((first..*end).map(move |r| (first, r)))
        })
        .flatten()
}

/// How head `h` of token `r` weighs the tokens `first..=r`.
fn probabilities<S: Scalar>(qkv: &[S], heads: Heads, h: usize, first: usize, r: usize) -> Vec<S> {
    let scale = S::inv_sqrt(heads.dim);
    let score = |j| dot(&qkv[heads.query(r, h)], &qkv[heads.key(j, h)]) * scale;
    softmax(&(first..=r).map(score).collect::<Vec<S>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use tensor::F61;

    const GROUPED: Heads = Heads { queries: 4, keys: 2, dim: 3 };

    /// Kills: a missing scale, keys and values exchanged, a first token that sees the second.
    #[test]
    fn attention_equals_two_tokens_worked_out_by_hand() {
        let heads = Heads { queries: 1, keys: 1, dim: 4 };
        let first = [1.0, 0.0, 2.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
        let second = [2.0, 1.0, 0.0, 1.0, 1.0, 1.0, 9.0, 3.0, -1.0, 0.0, 1.0, 5.0];
        // scores of the second token: 2·0.5 + 1·0.5 = 1.5 and 2 + 1 + 3 = 6, over √4
        let p = 1.0 / (1.0 + f64::exp(3.0 - 0.75));
        let q = 1.0 - p;
        let wanted = [1.0, 2.0, 3.0, 4.0, p - q, 2.0 * p, 3.0 * p + q, 4.0 * p + 5.0 * q];
        assert_close(&attention(&[first, second].concat(), heads, &[2]), &wanted, 1e-14);
    }

    /// Kills: a scale computed as a float, of another count, or applied to the keys twice.
    #[test]
    fn attention_equals_two_tokens_in_the_field_exactly() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(5, 2 * 3); // one head of one feature: rows [q, k, v]
            let score = |j: usize| x[3] * x[3 * j + 1] * F61::inv_sqrt(1);
            let e = F61::exp_sub(score(0), score(1));
            let second = (e * x[2] + x[5]) * (e + F61::ONE).inv();
            assert_eq!(attention(&x, Heads { queries: 1, keys: 1, dim: 1 }, &[2]), [x[2], second]);
        });
    }

    /// Kills: query heads that read the wrong group's keys or values, heads in the wrong place of the output.
    #[test]
    fn attention_of_groups_equals_each_head_by_itself() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(1, 3 * GROUPED.row());
            let o = attention(&x, GROUPED, &[3]);
            for (h, group) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
                let alone: Vec<F61> = x
                    .chunks(GROUPED.row())
                    .flat_map(|row| [h, 4 + group, 6 + group].map(|at| row[at * 3..][..3].to_vec()).concat())
                    .collect();
                let wanted = attention(&alone, Heads { queries: 1, keys: 1, dim: 3 }, &[3]);
                for r in 0..3 {
                    assert_eq!(o[r * 12 + h * 3..][..3], wanted[r * 3..][..3], "token {r}, head {h}");
                }
            }
        });
    }

    /// Kills: a look into the sequence before or after, a sequence dropped.
    #[test]
    fn attention_of_packed_sequences_equals_each_sequence_by_itself() {
        under_two_keys(|| {
            let x: Vec<F61> = draw(2, 6 * GROUPED.row());
            let lengths = [1, 3, 0, 2];
            let (mut alone, mut at) = (Vec::new(), 0);
            for length in lengths {
                alone.extend(attention(&x[at..][..length * GROUPED.row()], GROUPED, &[length]));
                at += length * GROUPED.row();
            }
            assert_eq!(attention(&x, GROUPED, &lengths), alone);
            assert_eq!(alone.len(), 6 * 12);
        });
    }

    /// Kills: a scale lost backward, a softmax without its mean, `=` for `+=` where query heads share a key.
    #[test]
    fn attention_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let shapes = [(GROUPED, [2, 4, 1]), (Heads { queries: 3, keys: 3, dim: 1 }, [3, 0, 2])];
            for (heads, lengths) in shapes {
                let tokens: usize = lengths.iter().sum();
                let (x, d_o) = (draw(3, tokens * heads.row()), draw(4, tokens * heads.queries * heads.dim));
                let d = attention_backward(&values(&x), &d_o, heads, &lengths);
                assert_derivative(&d_o, &attention(&x, heads, &lengths), &[(&x, &d)]);
            }
        });
    }

    #[test]
    #[should_panic(expected = "divide")]
    fn key_heads_that_do_not_divide_panic() {
        let heads = Heads { queries: 3, keys: 2, dim: 1 };
        let _ = attention(&[0.0; 7], heads, &[1]);
    }
}
