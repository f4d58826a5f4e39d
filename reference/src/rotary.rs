//! Rotary position embedding: queries and keys turned by angles that grow with the position.
//!
//! Letters: `B` tokens, `d` features of a head that turn. Of these, feature `i < ⌊d/2⌋` pairs with
//! `i + ⌊d/2⌋`, or `2i` with `2i + 1` if pairs are neighbours; an odd last one stays, and so do a head's
//! other features.
//!
//! ```text
//! forward   (a, b) ← (a·cos − b·sin, b·cos + a·sin)  angle = position · frequency, base^(−2i/d) unscaled
//! backward  the transpose: sin with the other sign
//! ```
//! Source: Su et al., "`RoFormer`", arXiv:2104.09864; pairs in halves as in the Llama of Hugging Face.
use shape::Heads;
use tensor::{Rope, Scalar};

/// Turns the queries and keys of rows `[Q | K | V]` in place: `qkv[B, row]`, with token `r` at position
/// `positions[r]` of its sequence. If `back`, applies the transpose, which takes the gradient of the output
/// to that of the input.
///
/// # Panics
/// If `qkv` does not hold one row for each position.
pub fn rotary<S: Scalar>(qkv: &mut [S], heads: Heads, positions: &[usize], rope: &Rope, back: bool) {
    assert_eq!(qkv.len(), positions.len() * heads.row(), "each position needs one row [Q | K | V]");
    let half = heads.rotated / 2;
    for (row, &position) in qkv.chunks_mut(heads.row()).zip(positions) {
        for head in row.chunks_mut(heads.dim).take(heads.queries + heads.keys) {
            for i in 0..half {
                let (cos, sin) = S::rotary(position, i, heads.rotated, rope);
                let sin = if back { -sin } else { sin };
                let pair = if heads.neighbours { [2 * i, 2 * i + 1] } else { [i, half + i] };
                let [at, beside] = pair.map(|feature| heads.plain + feature);
                let [a, b] = [head[at], head[beside]];
                head[at] = a * cos - b * sin;
                head[beside] = b * cos + a * sin;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys};
    use tensor::{F61, Scaling};

    const ODD: Heads = Heads::new(2, 1, 5);

    /// Kills: pairs of neighbours instead of halves or the other way round, rotated values, the opposite
    /// direction, a wrong angle.
    #[test]
    fn rotary_equals_explicit_sines_and_cosines() {
        let (positions, base) = ([0, 3, 1], 100.0_f64);
        for (dim, neighbours) in [(4, false), (5, false), (4, true), (5, true)] {
            let heads = Heads { neighbours, ..Heads::new(1, 1, dim) };
            let apart = if neighbours { 1 } else { 2 };
            let x: Vec<f64> = draw(1, 3 * heads.row());
            let (mut turned, mut wanted) = (x.clone(), x.clone());
            rotary(&mut turned, heads, &positions, &base.into(), false);
            for (r, position) in positions.into_iter().enumerate() {
                for i in 0..2 {
                    let angle = position as f64 / base.powf(2.0 * i as f64 / dim as f64);
                    let first = if neighbours { 2 * i } else { i };
                    for at in [r * heads.row() + first, r * heads.row() + dim + first] {
                        wanted[at] = x[at] * angle.cos() - x[at + apart] * angle.sin();
                        wanted[at + apart] = x[at] * angle.sin() + x[at + apart] * angle.cos();
                    }
                }
            }
            assert_close(&turned, &wanted, 1e-14);
        }
    }

    /// Kills: a factor that is not a rotation, a last odd feature that changes, a backward that is not the
    /// inverse.
    #[test]
    fn rotary_preserves_norms_and_returns() {
        let x: Vec<f64> = draw(2, 2 * ODD.row());
        let norms = |x: &[f64]| x.chunks(5).map(|h| h.iter().map(|x| x * x).sum()).collect::<Vec<f64>>();
        let mut y = x.clone();
        rotary(&mut y, ODD, &[7, 2], &10_000.0.into(), false);
        assert!((y[0] - x[0]).abs() > 1e-3 && (y[10] - x[10]).abs() > 1e-3, "queries and keys move");
        assert_close(&norms(&y), &norms(&x), 1e-13);
        assert_close(&[y[4], y[9], y[14]], &[x[4], x[9], x[14]], 0.0);
        assert_close(&y[15..20], &x[15..20], 0.0); // values, not rotated
        rotary(&mut y, ODD, &[7, 2], &10_000.0.into(), true);
        assert_close(&y, &x, 1e-14);
    }

    /// Kills: scores that depend on more than the distance between query and key.
    #[test]
    fn rotary_scores_depend_on_distance_only() {
        let score = |q: usize, k: usize| {
            let mut x: Vec<f64> = draw(3, 2 * ODD.row());
            rotary(&mut x, ODD, &[q, k], &50.0.into(), false);
            (0..5).map(|c| x[c] * x[20 + 10 + c]).sum::<f64>()
        };
        assert_close(&[score(4, 1), score(9, 9)], &[score(13, 10), score(0, 0)], 1e-13);
        assert!((score(4, 1) - score(4, 2)).abs() > 1e-3);
    }

    /// Kills: a rope of which only the base is used.
    #[test]
    fn rotary_turns_as_far_as_the_rope_says() {
        let (x, plain): (Vec<f64>, Rope) = (draw(6, ODD.row()), 50.0.into());
        let half = Rope { scaling: Scaling::Linear { factor: 2.0 }, ..plain };
        let [mut slow, mut fast] = [x.clone(), x];
        rotary(&mut slow, ODD, &[6], &half, false);
        rotary(&mut fast, ODD, &[3], &plain, false);
        assert_close(&slow, &fast, 1e-14);
    }

    /// Kills: angles computed as floats.
    #[test]
    fn rotary_turns_a_unit_by_the_scalars_own_angle_exactly() {
        under_two_keys(|| {
            let (o, l) = (F61::ZERO, F61::ONE);
            let mut x = [l, o, o, l, l, o]; // one head of two features: rows [Q, K, V]
            rotary(&mut x, Heads::new(1, 1, 2), &[3], &50.0.into(), false);
            let (cos, sin) = F61::rotary(3, 0, 2, &50.0.into());
            assert_eq!(x, [cos, sin, -sin, cos, l, o]);
        });
    }

    /// Kills: a backward that is the inverse but not the transpose (they differ in the field).
    #[test]
    fn rotary_back_equals_the_derivative_exactly() {
        under_two_keys(|| {
            let (x, dy, positions) = (draw(4, 3 * ODD.row()), draw(5, 3 * ODD.row()), [0, 6, 1]);
            let (mut y, mut dx) = (x.clone(), dy.clone());
            rotary(&mut y, ODD, &positions, &10_000.0.into(), false);
            rotary(&mut dx, ODD, &positions, &10_000.0.into(), true);
            assert_derivative(&dy, &y, &[(&x, &dx)]);
        });
    }
}
