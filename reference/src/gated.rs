//! Functions of gate and up between the products of the feed-forward layer.
//!
//! Letters: `B` tokens, `F` hidden features; rows `[gate(F) | up(F)]`; `s` a sigmoid.
//!
//! ```text
//! SwiGLU    h = gate·s(gate)·up
//! GeGLU     h = gate·s(a·(gate + b·gate³))·up, GELU's tanh form
//! clamped   h = g·s(1.702·g)·(u + 1), g = min(gate, 7), u = up between −7 and 7
//! ```
//! Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202; `OpenAI`, "gpt-oss", §2.1,
//! arXiv:2508.10925.
use crate::activation::gate;
use shape::{Activation, Gate};
use tensor::Scalar;

/// `[gate | up][B,2F]` → `H[B,F]`, with `F = hidden`.
///
/// # Panics
/// If the rows are not `2·hidden` wide.
#[must_use]
pub fn gated<S: Scalar>(gate_up: &[S], hidden: usize, f: Gate) -> Vec<S> {
    assert!(gate_up.len().is_multiple_of(2 * hidden), "[gate | up][{}] does not fit {hidden}", gate_up.len());
    let row = |row: &[S]| {
        let (gate, up) = row.split_at(hidden);
        gate.iter().zip(up).map(|(&gate, &up)| with_slopes(gate, up, f)[0]).collect::<Vec<S>>()
    };
    gate_up.chunks(2 * hidden).flat_map(row).collect()
}

/// `[gate | up][B,2F], dH[B,F]` → `[dgate | dup][B,2F]`.
///
/// # Panics
/// If the rows are not `2·hidden` and `hidden` wide, or differ in number.
#[must_use]
pub fn gated_backward<S: Scalar>(gate_up: &[S], dh: &[S], hidden: usize, f: Gate) -> Vec<S> {
    let n = dh.len();
    assert!(gate_up.len() == 2 * n && n.is_multiple_of(hidden), "dH[{n}] does not fit [gate | up], {hidden}");
    let mut d = Vec::with_capacity(gate_up.len());
    for (row, dh) in gate_up.chunks(2 * hidden).zip(dh.chunks(hidden)) {
        let (gate, up) = row.split_at(hidden);
        for by in [1, 2] {
            d.extend(gate.iter().zip(up).zip(dh).map(|((&g, &u), &dh)| dh * with_slopes(g, u, f)[by]));
        }
    }
    d
}

/// Returns h, and its slopes by gate and by up.
fn with_slopes<S: Scalar>(g: S, u: S, f: Gate) -> [S; 3] {
    match f {
        Gate::Silu => {
            let s = g.sigmoid();
            [g * s * u, u * (s + g * s * (S::ONE - s)), g * s]
        }
        Gate::GeluTanh => {
            let (s, slope) = gate(g, Activation::GeluTanh);
            [g * s * u, u * (s + g * slope), g * s]
        }
        Gate::Clamped => {
            let [seven, a] = [7.0, 1.702].map(S::from_f64);
            let [high, above, below] = [g - seven, u - seven, -seven - u].map(S::step);
            let least = high * seven + g * (S::ONE - high);
            let inner = S::ONE - above - below;
            let factor = S::ONE + u * inner + (above - below) * seven;
            let s = (a * least).sigmoid();
            let slope = (S::ONE - high) * (s + a * least * s * (S::ONE - s));
            [least * s * factor, slope * factor, inner * (least * s)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{assert_close, assert_derivative, draw, under_two_keys, values};
    use std::f64::consts::PI;

    /// Kills: gate and up exchanged, gate and up interleaved, a sigmoid not multiplied by its argument.
    #[test]
    fn swiglu_equals_the_formula_in_std_floats() {
        let rows = [0.5, -2.0, 3.0, 4.0, 1.5, 0.0, -1.0, 7.0];
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let wanted = [silu(0.5) * 3.0, silu(-2.0) * 4.0, -silu(1.5), 0.0];
        assert_close(&gated(&rows, 2, Gate::Silu), &wanted, 1e-15);
    }

    /// Kills: a bound of one side, one that the factor misses, GELU's other form.
    #[test]
    fn other_gates_equal_their_formulas_in_std_floats() {
        let rows = [0.5, -9.0, 8.0, 2.0, 7.5, -8.0, 3.0, 0.25];
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let clamped = |g: f64, u: f64| {
            let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
            g * sigmoid(1.702 * g) * (u + 1.0)
        };
        let wanted = [clamped(0.5, 8.0), clamped(-9.0, 2.0), clamped(7.5, 3.0), clamped(-8.0, 0.25)];
        assert_close(&gated(&rows, 2, Gate::Clamped), &wanted, 1e-14);
        let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh());
        let wanted = [gelu(0.5) * 8.0, gelu(-9.0) * 2.0, gelu(7.5) * 3.0, gelu(-8.0) * 0.25];
        assert_close(&gated(&rows, 2, Gate::GeluTanh), &wanted, 1e-14);
    }

    /// Kills: the derivative of sigmoid only, dgate and dup exchanged, a slope beyond a bound.
    #[test]
    fn gates_backward_equals_the_derivative_exactly() {
        under_two_keys(|| {
            for (gate, b, f) in
                [(Gate::Silu, 3, 4), (Gate::Silu, 1, 1), (Gate::GeluTanh, 2, 3), (Gate::Clamped, 4, 3)]
            {
                let (x, dh) = (draw(1, b * 2 * f), draw(2, b * f));
                assert_derivative(
                    &dh,
                    &gated(&x, f, gate),
                    &[(&x, &gated_backward(&values(&x), &dh, f, gate))],
                );
            }
        });
    }
}
