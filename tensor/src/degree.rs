//! Polynomial degrees as numbers: run the oracle on them, and what comes out bounds how often a proof could err.
//!
//! Every opaque result (exp, sigmoid, rsqrt, …) counts as a fresh variable of degree 1, and so does every inverse.
//! What a program computes is then a polynomial in those variables; [`Tally`] holds what the union bound needs.
use crate::scalar::Scalar;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

/// An upper bound on the degree of a value, and which value it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Degree {
    degree: f64,
    id: u64, // equal ids are the same value; constants are 0
}

/// What a run on degrees counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Opaque evaluations of different values.
    pub opaque: f64,
    /// The largest degree of an argument of one.
    pub argument: f64,
    /// Σ of the degrees of what was inverted: clearing all denominators multiplies by a polynomial of this degree.
    pub inverted: f64,
}

#[derive(Default)]
struct Count {
    tally: Tally,
    opaque: HashSet<(u64, u8)>,
    inverted: HashSet<(u64, bool)>,
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(1) };
    static COUNT: RefCell<Count> = RefCell::default();
}

impl Degree {
    /// An independent random value: a weight or an input.
    #[must_use]
    pub fn variable() -> Degree {
        Self::of(1.0)
    }
    /// The bound on this value's degree, denominators aside.
    pub fn degree(self) -> f64 {
        self.degree
    }
    /// What this thread counted since the last call.
    #[must_use]
    pub fn take_tally() -> Tally {
        COUNT.take().tally
    }
    #[inline]
    fn of(degree: f64) -> Degree {
        Degree { degree, id: NEXT.replace(NEXT.get() + 1) }
    }
    fn opaque(self, function: u8) -> Degree {
        COUNT.with_borrow_mut(|c| {
            if c.opaque.insert((self.id, function)) {
                c.tally.opaque += 1.0;
                c.tally.argument = c.tally.argument.max(self.degree);
            }
        });
        Self::of(1.0)
    }
    /// One over this value, or over its exponential.
    fn inverse(self, exponential: bool) -> Degree {
        COUNT.with_borrow_mut(|c| {
            if self.id != 0 && c.inverted.insert((self.id, exponential)) {
                c.tally.inverted += if exponential { 1.0 } else { self.degree };
            }
        });
        if self.id == 0 { self } else { Self::of(1.0) }
    }
}

impl Add for Degree {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self::of(self.degree.max(o.degree))
    }
}
impl Sub for Degree {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self + o
    }
}
impl Neg for Degree {
    type Output = Self;
    fn neg(self) -> Self {
        self
    }
}
impl Mul for Degree {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Self::of(self.degree + o.degree)
    }
}
impl AddAssign for Degree {
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

impl Scalar for Degree {
    const NAME: &'static str = "degree";
    const ZERO: Self = Degree { degree: 0.0, id: 0 };
    const ONE: Self = Degree { degree: 0.0, id: 0 };
    const NEG_INF: Self = Degree { degree: f64::NEG_INFINITY, id: 0 };
    fn from_f64(_: f64) -> Self {
        Self::ZERO
    }
    fn inv(self) -> Self {
        self.inverse(false)
    }
    fn stab(a: Self, b: Self) -> Self {
        if a == Self::NEG_INF { b } else { a + b }
    }
    fn exp_sub(a: Self, b: Self) -> Self {
        if a == Self::NEG_INF {
            return Self::ZERO;
        }
        a.opaque(0) * b.opaque(0) * b.inverse(true)
    }
    fn lse(m: Self, l: Self) -> Self {
        (l * m.opaque(0)).opaque(1)
    }
    fn sigmoid(self) -> Self {
        self.opaque(2)
    }
    fn rsqrt(self) -> Self {
        self.opaque(3)
    }
    fn inv_sqrt(_: usize) -> Self {
        Self::of(1.0)
    }
    fn rotary(_: usize, _: usize, _: usize, _: f64) -> (Self, Self) {
        (Self::of(1.0), Self::of(1.0))
    }
    fn clip_factor(norm2: Self, _: f64) -> Self {
        norm2.opaque(4)
    }
    fn adam_scale(v: Self, _: f64) -> Self {
        v.opaque(5)
    }
    fn sample(_: u64, _: f64) -> Self {
        Self::variable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_add_under_products_and_restart_at_opaque_functions() {
        let (x, y) = (Degree::variable(), Degree::variable());
        let z = x * y * x + y;
        assert_eq!(z.degree(), 3.0);
        assert_eq!((z.sigmoid() * x).degree(), 2.0);
        let _ = (z.sigmoid(), z.inv(), z.inv(), y.rsqrt());
        assert_eq!(Degree::take_tally(), Tally { opaque: 2.0, argument: 3.0, inverted: 3.0 });
        assert_eq!(Degree::take_tally(), Tally::default());
    }
}
