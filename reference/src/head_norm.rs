//! Norms of queries and keys: root-mean-square norm of each head's features, with a gain that all heads
//! share.
//!
//! ```text
//! forward   Q_h ← norm(Q_h)·q_gain    K_h ← norm(K_h)·k_gain     of every token and head, V stays
//! backward  as of the norm; the gains' gradients are sums over all tokens and heads
//! ```
//! Source: Henry et al., "Query-key normalization", arXiv:2010.04245; this form: Qwen3, arXiv:2505.09388, §2.
use crate::linear::add;
use crate::norm::{rms_norm, rms_norm_backward};
use shape::Heads;
use tensor::Scalar;

/// Norms the queries and keys of rows `[Q | K | V]` in place: `qkv[B, row]`, `q_gain[dim]`, `k_gain[dim]`.
///
/// # Panics
/// If `qkv` does not consist of such rows, or a gain is not as wide as a head.
pub fn head_norm<S: Scalar>(qkv: &mut [S], heads: Heads, q_gain: &[S], k_gain: &[S], eps: f64) {
    check(qkv, heads, [q_gain, k_gain]);
    for row in qkv.chunks_mut(heads.row()) {
        for (h, head) in row.chunks_mut(heads.dim).take(heads.queries + heads.keys).enumerate() {
            let gain = if h < heads.queries { q_gain } else { k_gain };
            head.copy_from_slice(&rms_norm(head, gain, eps));
        }
    }
}

/// Computes the backward. `qkv[B, row]` is the forward's input; `dqkv[B, row]` turns in place from the
/// gradient of the output into that of the input. Returns `(dq_gain[dim], dk_gain[dim])`.
///
/// # Panics
/// As [`head_norm`], and if `dqkv` is not as long as `qkv`.
pub fn head_norm_backward<S: Scalar>(
    qkv_before: &[S],
    dqkv: &mut [S],
    heads: Heads,
    q_gain: &[S],
    k_gain: &[S],
    eps: f64,
) -> (Vec<S>, Vec<S>) {
    check(qkv_before, heads, [q_gain, k_gain]);
    assert_eq!(qkv_before.len(), dqkv.len(), "a row of dQKV for each of QKV");
    let [mut dq_gain, mut dk_gain] = [vec![S::ZERO; heads.dim], vec![S::ZERO; heads.dim]];
    for (row, d) in qkv_before.chunks(heads.row()).zip(dqkv.chunks_mut(heads.row())) {
        let both = row.chunks(heads.dim).zip(d.chunks_mut(heads.dim)).take(heads.queries + heads.keys);
        for (h, (head, d)) in both.enumerate() {
            let query = h < heads.queries;
            let (dx, dgain) = rms_norm_backward(head, if query { q_gain } else { k_gain }, d, eps);
            d.copy_from_slice(&dx);
            add(if query { &mut dq_gain } else { &mut dk_gain }, dgain);
        }
    }
    (dq_gain, dk_gain)
}

fn check<S: Scalar>(qkv: &[S], heads: Heads, gains: [&[S]; 2]) {
    let n = qkv.len();
    assert!(n.is_multiple_of(heads.row()), "{n} elements do not form rows [Q | K | V] of {heads:?}");
    assert!(gains.iter().all(|gain| gain.len() == heads.dim), "gains must be as wide as a head of {heads:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};

    const HEADS: Heads = Heads::new(4, 2, 3);

    /// Kills: a norm over all heads, gains exchanged, gains per head, normalized values, ε forgotten.
    #[test]
    fn head_norm_equals_the_formula_in_std_floats() {
        let (mut x, gains, eps): (Vec<f64>, _, _) =
            (draw(1, 2 * HEADS.row()), [[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]], 0.125);
        let mut wanted = x.clone();
        for (at, head) in wanted.chunks_mut(3).enumerate() {
            let gain = match at % 8 {
                0..4 => gains[0],
                4 | 5 => gains[1],
                _ => continue,
            };
            let root = (head.iter().map(|x| x * x).sum::<f64>() / 3.0 + eps).sqrt();
            (0..3).for_each(|j| head[j] *= gain[j] / root);
        }
        head_norm(&mut x, HEADS, &gains[0], &gains[1], eps);
        assert_close(&x, &wanted, 1e-14);
    }

    /// Kills: gradients of gains from one head or token only, gradients of gains exchanged, changed gradients
    /// of values.
    #[test]
    fn head_norm_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (heads, eps) in [(HEADS, 1e-5), (Heads::new(1, 1, 1), 0.5)] {
                let (x, q, k) = (draw(2, 3 * heads.row()), draw(3, heads.dim), draw(4, heads.dim));
                let dy = draw(5, x.len());
                let (mut y, mut dx) = (x.clone(), dy.clone());
                head_norm(&mut y, heads, &q, &k, eps);
                let (dq, dk) = head_norm_backward(&values(&x), &mut dx, heads, &values(&q), &values(&k), eps);
                assert_derivative(&dy, &y, &[(&x, &dx), (&q, &dq), (&k, &dk)]);
            }
        });
    }

    #[test]
    #[should_panic(expected = "gains must be as wide as a head")]
    fn a_gain_for_all_heads_panics() {
        head_norm(&mut [0.0; 24], HEADS, &[1.0; 12], &[1.0; 3], 1.0);
    }
}
