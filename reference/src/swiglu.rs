//! The gated activation of the feed-forward layer.
//!
//! Letters: `B` tokens, `F` hidden features; rows `[gate(F) | up(F)]`; `s = sigmoid(gate)`.
//!
//! ```text
//! forward    H[B,F] = gate·s·up
//! backward  dgate   = dH·up·(s + gate·s·(1 − s))
//!           dup     = dH·gate·s
//! ```
//! Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
use tensor::Scalar;

/// `[gate | up][B,2F]` → `H[B,F]`, with `F = hidden`.
///
/// # Panics
/// If the rows are not `2·hidden` wide.
#[must_use]
pub fn swiglu<S: Scalar>(gate_up: &[S], hidden: usize) -> Vec<S> {
    assert!(gate_up.len().is_multiple_of(2 * hidden), "[gate | up][{}] does not fit {hidden}", gate_up.len());
    let row = |row: &[S]| {
        let (gate, up) = row.split_at(hidden);
        gate.iter().zip(up).map(|(&gate, &up)| gate * gate.sigmoid() * up).collect::<Vec<S>>()
    };
    gate_up.chunks(2 * hidden).flat_map(row).collect()
}

/// `[gate | up][B,2F], dH[B,F]` → `[dgate | dup][B,2F]`.
///
/// # Panics
/// If the rows are not `2·hidden` and `hidden` wide, or differ in number.
#[must_use]
pub fn swiglu_backward<S: Scalar>(gate_up: &[S], dh: &[S], hidden: usize) -> Vec<S> {
    let n = dh.len();
    assert!(gate_up.len() == 2 * n && n.is_multiple_of(hidden), "dH[{n}] does not fit [gate | up], {hidden}");
    let mut d = Vec::with_capacity(gate_up.len());
    for (row, dh) in gate_up.chunks(2 * hidden).zip(dh.chunks(hidden)) {
        let (gate, up) = row.split_at(hidden);
        d.extend(gate.iter().zip(up).zip(dh).map(|((&gate, &up), &dh)| {
            let s = gate.sigmoid();
            dh * up * (s + gate * s * (S::ONE - s))
        }));
        d.extend(gate.iter().zip(dh).map(|(&gate, &dh)| dh * gate * gate.sigmoid()));
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};

    /// Kills: gate and up exchanged, gate and up interleaved, a sigmoid not multiplied by its argument.
    #[test]
    fn swiglu_equals_the_formula_in_std_floats() {
        let rows = [0.5, -2.0, 3.0, 4.0, 1.5, 0.0, -1.0, 7.0];
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let wanted = [silu(0.5) * 3.0, silu(-2.0) * 4.0, -silu(1.5), 0.0];
        assert_close(&swiglu(&rows, 2), &wanted, 1e-15);
    }

    /// Kills: the derivative of sigmoid only, dgate and dup exchanged.
    #[test]
    fn swiglu_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (b, f) in [(3, 4), (1, 1), (2, 3)] {
                let (x, dh) = (draw(1, b * 2 * f), draw(2, b * f));
                assert_derivative(&dh, &swiglu(&x, f), &[(&x, &swiglu_backward(&values(&x), &dh, f))]);
            }
        });
    }
}
