//! Dtypes that a program may run on.
//!
//! Ring operations and [`Scalar::inv`] keep their meaning in every dtype; every other function is
//! *uninterpreted* in the field (a keyed hash of a fully reduced value). There is no `exp`, `ln`, `sqrt` or
//! `<`: the type checker keeps layer code provable. Code that chooses among values, such as a router, uses
//! [`Scalar::order`].
//!
//! Constants: only literals and settings go through [`Scalar::from_f64`]; arithmetic on them (`1 − β`, `β^t`,
//! `1/n`) happens in `Scalar`, so that it is the same arithmetic in every dtype.
pub(crate) mod codes;

use crate::{Coded, Rope};
use bytemuck::AnyBitPattern;
use std::any::TypeId;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

/// Implements the operators of a dtype from their expressions, and `AddAssign` from `Add`.
macro_rules! operators {
    (@ [$($generic:tt)*] $number:ty, AddAssign) => {
        impl<$($generic)*> std::ops::AddAssign for $number {
            #[inline(always)]
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
    };
    (@ [$($generic:tt)*] $number:ty, $operator:ident $name:ident |$a:ident $(, $b:ident)?| $body:expr) => {
        impl<$($generic)*> std::ops::$operator for $number {
            type Output = Self;
            #[inline(always)]
            fn $name(self $(, $b: Self)?) -> Self {
                let $a = self;
                $body
            }
        }
    };
    ($generic:tt $number:ty, $($operator:ident $name:ident |$a:ident $(, $b:ident)?| $body:expr;)*) => {
        $(operators!(@ $generic $number, $operator $name |$a $(, $b)?| $body);)*
        operators!(@ $generic $number, AddAssign);
    };
}
pub(crate) use operators;

/// Operations that layer and kernel code may apply to an element: no others.
pub trait Scalar:
    AnyBitPattern
    + Send
    + Sync
    + PartialEq
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// Name of the dtype in messages and files: `f32`, `f61`.
    const NAME: &'static str;
    /// Neutral element of the sum.
    const ZERO: Self;
    /// Neutral element of the product.
    const ONE: Self;
    /// Neutral element of [`stab`](Self::stab), which [`exp_sub`](Self::exp_sub) maps to zero. No arithmetic
    /// is defined on it; the field panics on such arithmetic in debug builds.
    const NEG_INF: Self;
    /// Dtype of gradients, master weights, sums and statistics: as wide as a sum needs, often this dtype.
    type Wide: Coded + From<Self> + Into<Self>;
    /// True if sums are kept in another dtype than this one.
    const NARROW: bool = size_of::<Self>() != size_of::<Self::Wide>();

    /// Converts to the wide dtype; exact.
    #[must_use]
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        self.into()
    }
    /// Converts values to the wide dtype; they are copied only if that is another one.
    #[must_use]
    fn widened(values: Cow<'_, [Self]>) -> Cow<'_, [Self::Wide]> {
        match values {
            Cow::Borrowed(values) if TypeId::of::<Self>() == TypeId::of::<Self::Wide>() => {
                // SAFETY: elements of the same type.
                Cow::Borrowed(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
            }
            values => values.iter().map(|value| value.widen()).collect(),
        }
    }
    /// Rounds a wide value once.
    #[must_use]
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        wide.into()
    }
    /// Dtype that stands for it in prices: its elements, and those of its wide dtype, have the same size.
    type Priced: Scalar;
    /// True for a float whose range is smaller than that of f32, so that training scales the loss.
    const SMALL_RANGE: bool = false;
    /// Returns true for all but a float's infinities and NaN.
    fn is_finite(self) -> bool {
        true
    }
    /// Converts a constant: rounded on floats, the exact image of the dyadic value in the field.
    fn from_f64(x: f64) -> Self;
    /// Converts a count; `1/n` is `from_usize(n).inv()`.
    #[must_use]
    fn from_usize(n: usize) -> Self {
        Self::from_f64(n as f64)
    }
    /// Returns the multiplicative inverse.
    #[must_use]
    fn inv(self) -> Self;
    /// Returns `self^n` by squaring, with the same multiplications in every dtype.
    #[must_use]
    fn pow(self, n: usize) -> Self {
        let (mut base, mut power, mut n) = (self, Self::ONE, n);
        while n > 0 {
            if n & 1 == 1 {
                power = power * base;
            }
            base = base * base;
            n >>= 1;
        }
        power
    }
    /// Compares in a fixed order, for choices only: no value derives from it. Floats are ordered by value,
    /// field elements by canonical integer; [`NEG_INF`](Self::NEG_INF) is below every other value, and NaN
    /// below that.
    #[must_use]
    fn order(self, other: Self) -> Ordering;
    /// Softmax stabiliser: max on floats, `a + b + K` in the field (K a constant, not 0). Results must cancel
    /// it.
    #[must_use]
    fn stab(a: Self, b: Self) -> Self;
    /// e^(a−b); field: E(a)/E(b), E a keyed permutation.
    #[must_use]
    fn exp_sub(a: Self, b: Self) -> Self;
    /// m + ln l; field: E⁻¹(l·E(m)).
    #[must_use]
    fn lse(m: Self, l: Self) -> Self;
    /// 1/(1 + e^(−x)).
    #[must_use]
    fn sigmoid(self) -> Self;
    /// The hyperbolic tangent; field: 2σ(2x) − 1, as it is exactly.
    #[must_use]
    #[inline(always)]
    fn tanh(self) -> Self {
        let y = (self + self).sigmoid();
        y + y - Self::ONE
    }
    /// Φ(x), the normal distribution function: `GeLU`'s gate.
    #[must_use]
    fn normal_cdf(self) -> Self;
    /// φ(x) = Φ'(x), the normal density.
    #[must_use]
    fn normal_pdf(self) -> Self;
    /// 1 if x > 0, else 0: `ReLU`'s gate. Field: any keyed value, since callers may use only that it is
    /// constant.
    #[must_use]
    fn step(self) -> Self;
    /// −1, 0 or 1 by the sign; NaN stays. Field: any keyed value, and 0 at 0.
    #[must_use]
    fn sign(self) -> Self;
    /// (2√(2/π), 0.044715): x·sigmoid(a·(x + b·x³)) is `GeLU`'s tanh form. Source: Hendrycks, Gimpel,
    /// "Gaussian error linear units", §2, arXiv:1606.08415.
    #[must_use]
    fn gelu_constants() -> (Self, Self) {
        (Self::from_f64(1.595_769_121_605_730_7), Self::from_f64(0.044_715))
    }
    /// 1/√x.
    #[must_use]
    fn rsqrt(self) -> Self;
    /// 1/√n of a count: the scale of attention.
    #[must_use]
    fn inv_sqrt(n: usize) -> Self {
        Self::from_usize(n).rsqrt()
    }
    /// (cos, sin) of `position` times the frequency of pair `i` of `d` features. Field: any keyed pair, since
    /// callers may use only its transpose.
    fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> (Self, Self);
    /// min(1, limit/√norm2): the factor of clipping by global norm, from the norm's *square*.
    #[must_use]
    fn clip_factor(norm2: Self, limit: f64) -> Self;
    /// 1/(√v + ε): Adam's scale, from the corrected second moment.
    #[must_use]
    fn adam_scale(v: Self, eps: f64) -> Self;
    /// Random draw from a hash of (seed, global index): normal with standard deviation `std` on floats,
    /// uniform in the field.
    #[must_use]
    fn sample(key: u64, std: f64) -> Self;
}
