//! Polynomial degrees as a dtype: the degrees that the oracle computes bound how often a proof could err.
//!
//! Every opaque result (exp, sigmoid, rsqrt, …) counts as a new variable of degree 1, and so does every
//! inverse. Each value of a program is then a polynomial in those variables. Write each inverted value as a
//! fraction `N/M`: clearing all denominators adds `e · max(deg N, deg M)` for each inverse that occurs to the
//! power `e`. [`Tally`] holds the counts for the union bound.
use bytemuck::AnyBitPattern;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};
use tensor::{CodeKind, Coded, Rope, Scalar};

/// Upper bound on the degree of a value, and the identity of the value.
#[derive(Clone, Copy, PartialEq, Debug, AnyBitPattern)]
pub struct Degree {
    total: f64,
    power: f64, // the largest power of any one inverse
    reach: f64, // at least the sum of the cleared degrees of the different values inverted in it
    id: u64,    // equal ids are the same value; constants are 0
}

/// The opaque functions. Functions that could be confused count as one: exp and its inverse are one
/// permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Function {
    /// exp and ln.
    Exp,
    /// The logistic function.
    Sigmoid,
    /// 1/√.
    Rsqrt,
    /// The factor of clipping.
    Clip,
    /// Adam's scale or Lion's sign, of one weight each.
    Adam,
    /// The normal distribution function.
    Normal,
    /// The normal density.
    Density,
    /// The unit step.
    Step,
    /// The code of a multiple of a unit: one of 2¹⁵.
    Code,
}
const FUNCTIONS: usize = 9;

/// Counts of a run on degrees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// By [`Function`]: number of evaluations at different values, sum of their arguments' degrees, largest
    /// of them.
    pub opaque: [(f64, f64, f64); FUNCTIONS],
    /// Σ of the cleared degrees of all inverted values.
    pub inverted: f64,
}

#[derive(Default)]
struct Count {
    tally: Tally,
    opaque: HashSet<(u64, usize, bool)>,
    inverted: HashSet<(u64, bool)>,
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(1) };
    static COUNT: RefCell<Count> = RefCell::default();
}

impl Degree {
    /// Returns an independent random value: a weight or an input.
    #[must_use]
    pub fn variable() -> Degree {
        Self::of(1.0, 0.0, 0.0)
    }
    /// Returns the bound on this value's degree, without denominators.
    pub fn degree(self) -> f64 {
        self.total
    }
    /// Returns the bound on this value's degree after the denominators of all inverted values so far are
    /// cleared.
    pub fn cleared(self) -> f64 {
        COUNT.with_borrow(|c| self.total + self.power * self.reach.min(c.tally.inverted))
    }
    /// Returns this thread's counts since the last call.
    #[must_use]
    pub fn take_tally() -> Tally {
        COUNT.take().tally
    }
    #[inline]
    fn of(total: f64, power: f64, reach: f64) -> Degree {
        Degree { total, power, reach, id: NEXT.replace(NEXT.get() + 1) }
    }
    fn opaque(self, function: Function, back: bool) -> Degree {
        let cleared = self.cleared();
        COUNT.with_borrow_mut(|c| {
            if c.opaque.insert((self.id, function as usize, back)) {
                let (count, sum, largest) = &mut c.tally.opaque[function as usize];
                (*count, *sum, *largest) = (*count + 1.0, *sum + cleared, largest.max(cleared));
            }
        });
        Self::variable()
    }
    /// Returns the inverse of this value, or of its exponential.
    fn inverse(self, exponential: bool) -> Degree {
        if self.id == 0 {
            return self; // one over a constant is a constant
        }
        let cleared = if exponential { 1.0 } else { self.cleared() };
        COUNT.with_borrow_mut(|c| {
            if c.inverted.insert((self.id, exponential)) {
                c.tally.inverted += cleared;
            }
        });
        Self::of(1.0, 1.0, cleared)
    }
}

impl Add for Degree {
    type Output = Self;
    #[inline]
    fn add(self, o: Self) -> Self {
        Self::of(self.total.max(o.total), self.power.max(o.power), self.reach + o.reach)
    }
}
impl Sub for Degree {
    type Output = Self;
    #[allow(clippy::suspicious_arithmetic_impl)] // a difference has the degree of a sum
    fn sub(self, o: Self) -> Self {
        self + o
    }
}
impl Neg for Degree {
    type Output = Self;
    fn neg(self) -> Self {
        if self.id == 0 { self } else { Self::of(self.total, self.power, self.reach) }
    }
}
impl Mul for Degree {
    type Output = Self;
    #[inline]
    fn mul(self, o: Self) -> Self {
        Self::of(self.total + o.total, self.power + o.power, self.reach + o.reach)
    }
}
impl AddAssign for Degree {
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

impl Scalar for Degree {
    const NAME: &'static str = "degree";
    const ZERO: Self = Degree { total: 0.0, power: 0.0, reach: 0.0, id: 0 };
    const ONE: Self = Self::ZERO;
    const NEG_INF: Self = Degree { total: f64::NEG_INFINITY, power: 0.0, reach: 0.0, id: 0 };
    type Wide = Self;
    type Priced = Self;
    fn from_f64(_: f64) -> Self {
        Self::ZERO
    }
    fn inv(self) -> Self {
        self.inverse(false)
    }
    /// All degrees are equal, so the first ones are chosen: a bound has no value to choose by. To make the
    /// bound hold for every choice, let the program choose all.
    fn order(self, _: Self) -> Ordering {
        Ordering::Equal
    }
    fn stab(a: Self, b: Self) -> Self {
        if a == Self::NEG_INF { b } else { a + b }
    }
    fn exp_sub(a: Self, b: Self) -> Self {
        if a == Self::NEG_INF {
            return Self::ZERO;
        }
        let _ = b.opaque(Function::Exp, false);
        a.opaque(Function::Exp, false) * b.inverse(true)
    }
    fn lse(m: Self, l: Self) -> Self {
        (l * m.opaque(Function::Exp, false)).opaque(Function::Exp, true)
    }
    fn sigmoid(self) -> Self {
        self.opaque(Function::Sigmoid, false)
    }
    fn normal_cdf(self) -> Self {
        self.opaque(Function::Normal, false)
    }
    fn normal_pdf(self) -> Self {
        self.opaque(Function::Density, false)
    }
    fn step(self) -> Self {
        self.opaque(Function::Step, false)
    }
    fn sign(self) -> Self {
        self.opaque(Function::Adam, false)
    }
    fn rsqrt(self) -> Self {
        self.opaque(Function::Rsqrt, false)
    }
    fn inv_sqrt(_: usize) -> Self {
        Self::variable()
    }
    fn rotary(_: usize, _: usize, _: usize, _: &Rope) -> (Self, Self) {
        (Self::variable(), Self::variable())
    }
    fn clip_factor(norm2: Self, _: f64) -> Self {
        norm2.opaque(Function::Clip, false)
    }
    fn adam_scale(v: Self, _: f64) -> Self {
        v.opaque(Function::Adam, false)
    }
    fn sample(_: u64, _: f64) -> Self {
        Self::variable()
    }
}

impl Coded for Degree {
    type Code = u8;
    /// Returns a value of the degree of either.
    fn larger(self, other: Self) -> Self {
        self + other
    }
    /// Only codes are made of it, so it is in no value.
    fn reciprocal(self) -> Self {
        Self::ZERO
    }
    fn code(self, _: CodeKind) -> u8 {
        let _ = self.opaque(Function::Code, false);
        0
    }
    fn decoded(_: u8, _: CodeKind) -> Self {
        Self::variable()
    }
    fn from_codes(_: [u8; 4]) -> Self {
        Self::ZERO
    }
    fn codes(self) -> [u8; 4] {
        [0; 4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: degrees that add under sums, an inverse counted twice, a denominator that is not cleared.
    #[test]
    fn degrees_add_under_products_and_restart_at_opaque_functions() {
        let _ = Degree::take_tally();
        let (x, y) = (Degree::variable(), Degree::variable());
        let z = x * y * x + y;
        assert_eq!((z.degree(), z.cleared()), (3.0, 3.0));
        assert_eq!((z.sigmoid() * x).degree(), 2.0);
        let once = z.inv();
        let twice = once * z.inv() * x;
        assert_eq!((once.cleared(), twice.cleared()), (1.0 + 3.0, 3.0 + 2.0 * 3.0));
        let _ = (z.sigmoid(), twice.rsqrt());
        let _ = (-x).rsqrt();
        let tally = Degree::take_tally();
        assert_eq!(tally.inverted, 3.0);
        assert_eq!(tally.opaque[Function::Sigmoid as usize], (1.0, 3.0, 3.0));
        assert_eq!(tally.opaque[Function::Rsqrt as usize], (2.0, 9.0 + 1.0, 9.0));
        assert_eq!(Degree::take_tally(), Tally::default());
    }

    /// Checks that e^(a−b) is E(a)/E(b), a product of two variables, one of them an inverse, and that the
    /// argument of ln is l·E(m).
    #[test]
    fn exponentials_count_their_denominators() {
        let _ = Degree::take_tally();
        let (a, b) = (Degree::variable(), Degree::variable());
        let ratio = Degree::exp_sub(a * a, b * b * b);
        assert_eq!((ratio.degree(), ratio.cleared(), (ratio * ratio).cleared()), (2.0, 3.0, 4.0 + 2.0));
        let _ = Degree::exp_sub(a, b * b * b);
        let _ = Degree::lse(a, b * b);
        let tally = Degree::take_tally();
        // Arguments: a², b³ twice (in another product), a; then a again for the logarithm, whose own argument
        // is b²·E(a).
        assert_eq!(tally.opaque[Function::Exp as usize], (5.0, 2.0 + 3.0 + 3.0 + 1.0 + 3.0, 3.0));
        assert_eq!(tally.inverted, 2.0);
    }

    #[test]
    fn constants_are_no_variables() {
        let _ = Degree::take_tally();
        assert_eq!(Degree::from_usize(3).inv().degree(), 0.0);
        assert_eq!(Degree::exp_sub(Degree::NEG_INF, Degree::variable()), Degree::ZERO);
        assert_eq!(Degree::take_tally().inverted, 0.0);
    }
}
