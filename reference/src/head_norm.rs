//! Norms of queries and keys: root-mean-square norm of each head's features, with a gain that all heads
//! share; or of all heads' features together. The gain is as long as the features that one norm is of.
//!
//! ```text
//! forward   Q_h ← norm(Q_h)·q_gain    K_h ← norm(K_h)·k_gain     of every token and head, V stays
//! backward  as of the norm; the gains' gradients are sums over all tokens and heads
//! ```
//! Source: Henry et al., "Query-key normalization", arXiv:2010.04245; each head's: Qwen3, arXiv:2505.09388,
//! §2; all heads': `OLMo` Team, "2 `OLMo` 2 Furious", §3.3.2, arXiv:2501.00656.
use crate::linear::add;
use crate::norm::{rms_norm, rms_norm_backward};
use shape::Heads;
use tensor::Scalar;

/// Norms the queries and keys of rows `[Q | K | V]` in place: `qkv[B, row]`; `q_gain` and `k_gain` have the
/// features of a head, or of all heads of their kind.
///
/// # Panics
/// If `qkv` does not consist of such rows, or a gain is neither so wide.
pub fn head_norm<S: Scalar>(qkv: &mut [S], heads: Heads, q_gain: &[S], k_gain: &[S], eps: f64) {
    check(qkv, heads, [q_gain, k_gain]);
    for row in qkv.chunks_mut(heads.row()) {
        for (part, gain) in [(heads.q(), q_gain), (heads.k(), k_gain)] {
            for normed in row[part].chunks_mut(gain.len()) {
                normed.copy_from_slice(&rms_norm(normed, gain, eps));
            }
        }
    }
}

/// Computes the backward. `qkv[B, row]` is the forward's input; `dqkv[B, row]` turns in place from the
/// gradient of the output into that of the input. Returns the gradients of both gains.
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
    let [mut dq_gain, mut dk_gain] = [q_gain, k_gain].map(|gain| vec![S::ZERO; gain.len()]);
    for (row, d) in qkv_before.chunks(heads.row()).zip(dqkv.chunks_mut(heads.row())) {
        let parts = [(heads.q(), q_gain, &mut dq_gain), (heads.k(), k_gain, &mut dk_gain)];
        for (part, gain, dgain) in parts {
            let n = gain.len();
            for (normed, d) in row[part.clone()].chunks(n).zip(d[part].chunks_mut(n)) {
                let (dx, more) = rms_norm_backward(normed, gain, d, eps);
                d.copy_from_slice(&dx);
                add(dgain, more);
            }
        }
    }
    (dq_gain, dk_gain)
}

fn check<S: Scalar>(qkv: &[S], heads: Heads, gains: [&[S]; 2]) {
    let n = qkv.len();
    assert!(n.is_multiple_of(heads.row()), "{n} elements do not form rows [Q | K | V] of {heads:?}");
    let fit = gains
        .iter()
        .zip([heads.q(), heads.k()])
        .all(|(gain, all)| [heads.dim, all.len()].contains(&gain.len()));
    assert!(fit, "gains must be as wide as a head of {heads:?}, or as all of them");
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

    /// Kills: one norm of both queries and keys, a gain of one head, a norm of each head.
    #[test]
    fn joint_norms_equal_the_formula_in_std_floats() {
        let (mut x, q, k): (Vec<f64>, _, _) = (draw(1, 2 * HEADS.row()), draw(2, 12), draw(3, 6));
        let mut wanted = x.clone();
        for row in wanted.chunks_mut(HEADS.row()) {
            for (part, gain) in [(0..12, &q), (12..18, &k)] {
                let n = gain.len() as f64;
                let root = (row[part.clone()].iter().map(|x| x * x).sum::<f64>() / n + 0.125).sqrt();
                row[part].iter_mut().zip(gain).for_each(|(x, gain)| *x *= gain / root);
            }
        }
        head_norm(&mut x, HEADS, &q, &k, 0.125);
        assert_close(&x, &wanted, 1e-14);
    }

    /// Kills: gradients of gains from one head or token only, gradients of gains exchanged, changed gradients
    /// of values.
    #[test]
    fn head_norm_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let gains = [[3, 3], [12, 6], [1, 1]];
            for (heads, eps, [q, k]) in
                [(HEADS, 1e-5, gains[0]), (HEADS, 1e-5, gains[1]), (Heads::new(1, 1, 1), 0.5, gains[2])]
            {
                let (x, q, k) = (draw(2, 3 * heads.row()), draw(3, q), draw(4, k));
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
    fn a_gain_of_two_heads_panics() {
        head_norm(&mut [0.0; 24], HEADS, &[1.0; 6], &[1.0; 3], 1.0);
    }
}
