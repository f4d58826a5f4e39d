//! Cross-attention: every token attends to the whole memory of its sequence, such as an encoder's output.
//!
//! Letters: `B` query tokens, in rows `[Q]`; `M` tokens of all memories, in rows `[K | V]`. Each sequence has
//! one memory, of its own length. Forward and backward of a query are in `look.rs`.
//!
//! Source: Vaswani et al., §3.2.3, arXiv:1706.03762.
use crate::look::Look;
use crate::mask::Mask;
use shape::Heads;
use tensor::Scalar;

/// `q[B, queries·dim], kv[M, keys·(dim+value)]` → `O[B, queries·value]`. `lengths`: tokens of each sequence,
/// and of each sequence's memory.
///
/// # Panics
/// If the KV heads do not divide the query heads, the rows do not fit the lengths, or a token's memory is
/// empty.
#[must_use]
pub fn cross_attention<S: Scalar>(q: &[S], kv: &[S], heads: Heads, lengths: [&[usize]; 2]) -> Vec<S> {
    look(q, kv, heads, lengths).forward()
}

/// `q[B, queries·dim], kv[M, keys·(dim+value)], dO[B, queries·value]`
/// → `(dQ[B, queries·dim], [dK | dV][M, keys·(dim+value)])`.
///
/// # Panics
/// As [`cross_attention`], and if `dO` has another number of rows.
#[must_use]
pub fn cross_attention_backward<S: Scalar>(
    q: &[S],
    kv: &[S],
    d_o: &[S],
    heads: Heads,
    lengths: [&[usize]; 2],
) -> (Vec<S>, Vec<S>) {
    let [dq, dkv, _] = look(q, kv, heads, lengths).backward(d_o);
    (dq, dkv)
}

fn look<'a, S: Scalar>(q: &[S], kv: &[S], heads: Heads, lengths: [&'a [usize]; 2]) -> Look<'a, S> {
    Look { q: q.to_vec(), kv: kv.to_vec(), heads, lengths, rules: Mask::All.into(), dropout: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use crate::{Tokens, attention};
    use tensor::F61;

    const HEADS: Heads = Heads::new(4, 2, 3);

    /// Kills: a causal mask, the memory of another sequence, keys and values exchanged, a wrong group.
    #[test]
    fn cross_attention_equals_the_formula_in_std_floats() {
        let (q, kv): (Vec<f64>, Vec<f64>) = (draw(1, 4 * 12), draw(2, 7 * 12));
        // rows of each sequence's memory, empty for the sequence without tokens
        let memories = [0..5, 5..7, 5..7, 5..7];
        let mut wanted = Vec::new();
        for (q, memory) in q.chunks(12).zip(memories) {
            for h in 0..4 {
                let part = |j: usize, c: usize| &kv[j * 12 + c * 6 + h / 2 * 3..][..3];
                let score = |j| (0..3).map(|c| q[h * 3 + c] * part(j, 0)[c]).sum::<f64>() / 3f64.sqrt();
                let total: f64 = memory.clone().map(|j| score(j).exp()).sum();
                let feature = |c| memory.clone().map(|j| score(j).exp() / total * part(j, 1)[c]).sum::<f64>();
                wanted.extend((0..3).map(feature));
            }
        }
        assert_close(&cross_attention(&q, &kv, HEADS, [&[1, 0, 3], &[5, 0, 2]]), &wanted, 1e-14);
    }

    /// Kills: any difference between self-attention and cross-attention to the same sequence.
    #[test]
    fn cross_attention_to_oneself_equals_attention_exactly() {
        under_two_keys(|| {
            let (x, lengths): (Vec<F61>, _) = (draw(3, 5 * HEADS.row()), [3, 2]);
            let part = |of: std::ops::Range<usize>| -> Vec<F61> {
                x.chunks(HEADS.row()).flat_map(|row| row[of.clone()].to_vec()).collect()
            };
            let wanted = attention(&x, HEADS, Mask::All, &Tokens::new(&lengths), None);
            assert_eq!(cross_attention(&part(0..12), &part(12..24), HEADS, [&lengths; 2]), wanted);
        });
    }

    /// Kills: a gradient of the memory from the last token only, a gradient of the memory in the wrong rows.
    #[test]
    fn cross_attention_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let lengths: [&[usize]; 2] = [&[2, 0, 3], &[1, 2, 4]];
            let (q, kv, d_o) = (draw(4, 5 * 12), draw(5, 7 * 12), draw(6, 5 * 12));
            let (dq, dkv) = cross_attention_backward(&values(&q), &values(&kv), &d_o, HEADS, lengths);
            assert_derivative(&d_o, &cross_attention(&q, &kv, HEADS, lengths), &[(&q, &dq), (&kv, &dkv)]);
        });
    }

    #[test]
    #[should_panic(expected = "query 0 of sequence 1 sees no key")]
    fn a_token_without_memory_panics() {
        let _ = cross_attention(&[0.0; 24], &[0.0; 12], HEADS, [&[1, 1], &[1, 0]]);
    }

    #[test]
    #[should_panic(expected = "queries and keys must have the same number of sequences")]
    fn another_number_of_memories_panics() {
        let _ = cross_attention(&[0.0; 24], &[0.0; 12], HEADS, [&[1, 1], &[1]]);
    }

    #[test]
    #[should_panic(expected = "2 rows [K | V]")]
    fn a_memory_of_another_length_panics() {
        let _ = cross_attention(&[0.0; 12], &[0.0; 12], HEADS, [&[1], &[2]]);
    }
}
