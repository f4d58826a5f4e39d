//! Dual numbers `a + b·ε`, ε² = 0: a forward pass on them computes its exact derivative in the second part.
//!
//! Over the field this checks hand-written gradients without tolerance: for any tangent Ẋ,
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ holds exactly when dX is the gradient. Source: Wengert, "A simple automatic derivative
//! evaluation program", CACM 7(8), 1964.
use crate::scalar::operators;
use crate::{CodeKind, Coded, Rope, Scalar, mix};
use bytemuck::AnyBitPattern;
use std::cmp::Ordering;

/// A value and its tangent.
#[derive(Clone, Copy, PartialEq, Debug, AnyBitPattern)]
pub struct Dual<S> {
    /// The value.
    pub value: S,
    /// Derivative in the direction of the inputs' tangents.
    pub tangent: S,
}

impl<S: Scalar> Dual<S> {
    /// Creates a value with a tangent.
    pub fn new(value: S, tangent: S) -> Self {
        Self { value, tangent }
    }
    /// Creates a value with a zero tangent.
    pub fn constant(value: S) -> Self {
        Self { value, tangent: S::ZERO }
    }
}

operators! { [S: Scalar] Dual<S>,
    Add add |a, b| Self::new(a.value + b.value, a.tangent + b.tangent);
    Sub sub |a, b| Self::new(a.value - b.value, a.tangent - b.tangent);
    Neg neg |a| Self::new(-a.value, -a.tangent);
    Mul mul |a, b| Self::new(a.value * b.value, a.value * b.tangent + a.tangent * b.value);
}

impl<S: Coded> Scalar for Dual<S> {
    const NAME: &'static str = "dual";
    const ZERO: Self = Dual { value: S::ZERO, tangent: S::ZERO };
    const ONE: Self = Dual { value: S::ONE, tangent: S::ZERO };
    const NEG_INF: Self = Dual { value: S::NEG_INF, tangent: S::ZERO };
    type Wide = Self;
    type Priced = Self;
    fn from_f64(x: f64) -> Self {
        Self::constant(S::from_f64(x))
    }
    fn inv(self) -> Self {
        let i = self.value.inv();
        Self::new(i, -(self.tangent * i * i))
    }
    /// Orders by value: a choice has no derivative.
    fn order(self, other: Self) -> Ordering {
        self.value.order(other.value)
    }
    /// Returns a constant: the stabiliser cancels, so it needs no tangent.
    fn stab(a: Self, b: Self) -> Self {
        Self::constant(S::stab(a.value, b.value))
    }
    fn exp_sub(a: Self, b: Self) -> Self {
        let y = S::exp_sub(a.value, b.value);
        Self::new(y, y * (a.tangent - b.tangent)) // exp' = exp
    }
    fn lse(m: Self, l: Self) -> Self {
        Self::new(S::lse(m.value, l.value), m.tangent + l.tangent * l.value.inv()) // ln' = 1/x
    }
    fn sigmoid(self) -> Self {
        let y = self.value.sigmoid();
        Self::new(y, y * (S::ONE - y) * self.tangent) // s' = s·(1 − s)
    }
    fn normal_cdf(self) -> Self {
        Self::new(self.value.normal_cdf(), self.value.normal_pdf() * self.tangent)
    }
    fn normal_pdf(self) -> Self {
        let y = self.value.normal_pdf();
        Self::new(y, -(self.value * y * self.tangent)) // φ' = −x·φ
    }
    /// Returns a constant: the derivative is 0 except at one point.
    fn step(self) -> Self {
        Self::constant(self.value.step())
    }
    fn rsqrt(self) -> Self {
        let r = self.value.rsqrt();
        Self::new(r, -(S::from_f64(0.5) * r * r * r * self.tangent)) // r' = −r³/2
    }
    fn inv_sqrt(n: usize) -> Self {
        Self::constant(S::inv_sqrt(n))
    }
    fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> (Self, Self) {
        let (cos, sin) = S::rotary(position, i, d, rope);
        (Self::constant(cos), Self::constant(sin))
    }
    /// Returns a constant: no gradient flows through an optimizer's step.
    fn clip_factor(norm2: Self, limit: f64) -> Self {
        Self::constant(S::clip_factor(norm2.value, limit))
    }
    /// Returns a constant: no gradient flows through an optimizer's step.
    fn sign(self) -> Self {
        Self::constant(self.value.sign())
    }
    /// Returns a constant: no gradient flows through an optimizer's step.
    fn adam_scale(v: Self, eps: f64) -> Self {
        Self::constant(S::adam_scale(v.value, eps))
    }
    /// Draws a value and a tangent: a random direction.
    fn sample(key: u64, std: f64) -> Self {
        Self::new(S::sample(key, std), S::sample(mix(key ^ 0x4d), std))
    }
}

/// Codes are those of the value: no gradient flows through an optimizer's step.
impl<S: Coded> Coded for Dual<S> {
    type Code = S::Code;
    fn larger(self, other: Self) -> Self {
        Self::constant(self.value.larger(other.value))
    }
    fn reciprocal(self) -> Self {
        Self::constant(self.value.reciprocal())
    }
    fn code(self, kind: CodeKind) -> S::Code {
        self.value.code(kind)
    }
    fn decoded(code: S::Code, kind: CodeKind) -> Self {
        Self::constant(S::decoded(code, kind))
    }
    fn from_codes(codes: [S::Code; 4]) -> Self {
        Self::constant(S::from_codes(codes))
    }
    fn codes(self) -> [S::Code; 4] {
        self.value.codes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rule against central differences in f64. Kills: a wrong sign, factor or power in a rule.
    #[test]
    fn tangents_are_derivatives() {
        type F = fn(Dual<f64>, Dual<f64>) -> Dual<f64>;
        let rules: [(&str, F); 11] = [
            ("mul", |x, y| x * y),
            ("sub", |x, y| x - y),
            ("neg", |x, y| -x + y),
            ("inv", |x, y| x.inv() + y),
            ("exp_sub", Dual::exp_sub),
            ("lse", Dual::lse),
            ("sigmoid", |x, y| x.sigmoid() + y),
            ("normal_cdf", |x, y| x.normal_cdf() + y),
            ("normal_pdf", |x, y| x.normal_pdf() + y),
            ("step", |x, y| x.step() * y),
            ("rsqrt", |x, y| (x * x + y * y).rsqrt()),
        ];
        let (x, y, dx, dy, h) = (1.3, 0.7, 0.9, -0.4, 1e-6);
        for (name, f) in rules {
            let at = |t: f64| f(Dual::constant(x + t * dx), Dual::constant(y + t * dy)).value;
            let slope = (at(h) - at(-h)) / (2.0 * h);
            let exact = f(Dual::new(x, dx), Dual::new(y, dy)).tangent;
            assert!((slope - exact).abs() < 1e-8, "{name}: {slope} {exact}");
        }
    }
}
