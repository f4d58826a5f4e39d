//! The prime field of 2^61 − 1: sums are associative, so split and unsplit runs agree bit for bit.
//!
//! Functions that are not ring operations are keyed hashes ([`crate::Key`]) of a fully reduced value. Applied to
//! a partial sum they give something else, which is how the proof sees it.
use crate::key::Key;
use crate::rope::Rope;
use crate::scalar::{Scalar, mix};
use std::fmt;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

const P: u64 = (1 << 61) - 1;
/// What the stabiliser adds, so that it cannot be taken for a sum.
const STAB: F61 = F61(0x0123_4567_89ab_cdef);

/// An element of the field of 2^61 − 1. Canonical: `0 ≤ x < p`; one value outside is the sentinel `NEG_INF`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F61(u64);

#[inline(always)]
fn reduce(x: u64) -> u64 {
    let y = (x & P) + (x >> 61);
    if y >= P { y - P } else { y }
}

impl F61 {
    /// The prime, 2^61 − 1.
    pub const P: u64 = P;

    /// The element `x mod p`.
    #[must_use]
    pub fn new(x: u64) -> F61 {
        F61(reduce(x))
    }
    /// The canonical representative, `0 ≤ x < p`; `u64::MAX` for the sentinel.
    pub fn canonical(self) -> u64 {
        self.0
    }
    /// The element of a 128-bit sum of products.
    #[inline(always)]
    pub fn from_wide(x: u128) -> F61 {
        F61(reduce((x as u64 & P) + ((x >> 61) as u64 & P) + (x >> 122) as u64))
    }
    /// The exact product before reduction; up to 64 of them fit into a sum.
    #[inline(always)]
    pub fn wide(self, other: F61) -> u128 {
        debug_assert!(self.0 < P && other.0 < P, "arithmetic on the sentinel");
        u128::from(self.0) * u128::from(other.0)
    }
    fn power(self, mut exponent: u64) -> F61 {
        let (mut base, mut result) = (self, F61(1));
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result * base;
            }
            base = base * base;
            exponent >>= 1;
        }
        result
    }
    /// An opaque function: a hash of (key, tag, value).
    fn hash(self, tag: u64) -> F61 {
        debug_assert!(self.0 < P, "an opaque function of the sentinel");
        F61(reduce(mix(self.0 ^ Key::hash(tag)) >> 3))
    }
    /// A keyed permutation of the field: stands for exp. Four rounds of multiply and shift on 61 bits; the one
    /// value that is not an element is walked over.
    fn exp(self) -> F61 {
        debug_assert!(self.0 < P, "exp of the sentinel");
        let (k, mut x) = (Key::hash(0xE), self.0);
        loop {
            for r in 0..4 {
                x = x.wrapping_add(mix(k ^ r)).wrapping_mul(mix(k ^ (r + 9)) | 1) & P;
                x ^= x >> 31;
            }
            if x != P {
                return F61(x);
            }
        }
    }
    /// The inverse of [`exp`](Self::exp).
    fn log(self) -> F61 {
        let (k, mut x) = (Key::hash(0xE), self.0);
        loop {
            for r in (0..4).rev() {
                x ^= x >> 31;
                let c = mix(k ^ (r + 9)) | 1;
                let inverse = (0..5).fold(c, |i, _| i.wrapping_mul(2u64.wrapping_sub(c.wrapping_mul(i)))); // Newton, mod 2^64
                x = x.wrapping_mul(inverse).wrapping_sub(mix(k ^ r)) & P;
            }
            if x != P {
                return F61(x);
            }
        }
    }
}

impl fmt::Debug for F61 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == F61::NEG_INF { f.write_str("-inf") } else { write!(f, "{:#x}", self.0) }
    }
}
impl Add for F61 {
    type Output = F61;
    #[inline(always)]
    fn add(self, other: F61) -> F61 {
        debug_assert!(self.0 < P && other.0 < P, "arithmetic on the sentinel");
        F61(reduce(self.0.wrapping_add(other.0)))
    }
}
impl Sub for F61 {
    type Output = F61;
    #[inline(always)]
    fn sub(self, other: F61) -> F61 {
        debug_assert!(self.0 < P && other.0 < P, "arithmetic on the sentinel");
        F61(reduce(self.0.wrapping_add(P).wrapping_sub(other.0)))
    }
}
impl Neg for F61 {
    type Output = F61;
    #[inline(always)]
    fn neg(self) -> F61 {
        F61(0) - self
    }
}
impl Mul for F61 {
    type Output = F61;
    #[inline(always)]
    fn mul(self, other: F61) -> F61 {
        F61::from_wide(self.wide(other))
    }
}
impl AddAssign for F61 {
    #[inline(always)]
    fn add_assign(&mut self, other: F61) {
        *self = *self + other;
    }
}

impl Scalar for F61 {
    const NAME: &'static str = "f61";
    const ZERO: F61 = F61(0);
    const ONE: F61 = F61(1);
    const NEG_INF: F61 = F61(u64::MAX);
    fn from_f64(x: f64) -> F61 {
        if x == 0.0 {
            return F61(0);
        }
        debug_assert!(x.is_normal(), "{x} has no image");
        let bits = x.abs().to_bits();
        let mantissa = F61((bits & ((1 << 52) - 1)) | 1 << 52);
        let exponent = ((bits >> 52) as i64 - 1075).rem_euclid(61); // 2 has order 61
        let y = mantissa * F61(1 << exponent);
        if x < 0.0 { -y } else { y }
    }
    /// # Panics
    /// On zero, which a random run meets with probability about 2^-61 a division.
    fn inv(self) -> F61 {
        assert!(self.0 != 0, "division by zero in the field");
        self.power(P - 2)
    }
    fn stab(a: F61, b: F61) -> F61 {
        match (a == F61::NEG_INF, b == F61::NEG_INF) {
            (true, _) => b,
            (_, true) => a,
            _ => a + b + STAB,
        }
    }
    fn exp_sub(a: F61, b: F61) -> F61 {
        assert!(b != F61::NEG_INF, "a row without a valid entry: exp(x − (−inf))");
        if a == F61::NEG_INF {
            F61(0)
        } else if a == b {
            F61(1)
        } else {
            a.exp() * b.exp().inv()
        }
    }
    fn lse(m: F61, l: F61) -> F61 {
        (l * m.exp()).log()
    }
    fn sigmoid(self) -> F61 {
        self.hash(1)
    }
    fn normal_cdf(self) -> F61 {
        self.hash(9)
    }
    fn normal_pdf(self) -> F61 {
        self.hash(10)
    }
    fn step(self) -> F61 {
        self.hash(11)
    }
    fn rsqrt(self) -> F61 {
        self.hash(2)
    }
    fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> (F61, F61) {
        let at = F61(reduce(mix(position as u64 ^ mix(i as u64 ^ mix(d as u64 ^ rope.hash()))) >> 3));
        (at.hash(5), at.hash(6))
    }
    fn clip_factor(norm2: F61, limit: f64) -> F61 {
        norm2.hash(limit.to_bits() ^ 4)
    }
    fn adam_scale(v: F61, eps: f64) -> F61 {
        v.hash(eps.to_bits() ^ 7)
    }
    fn sample(key: u64, _std: f64) -> F61 {
        F61(reduce(mix(key ^ Key::hash(8)) >> 3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(n: u64) -> F61 {
        F61::sample(n, 1.0)
    }

    /// Kills: a missed carry, a non-canonical result.
    #[test]
    fn arithmetic_is_that_of_integers_mod_p() {
        let _key = Key(1).enter();
        let edge = [0, 1, 2, P / 2, P - 2, P - 1].map(F61);
        for x in edge.into_iter().chain((0..200).map(draw)) {
            for y in edge.into_iter().chain((300..320).map(draw)) {
                let (a, b, p) = (u128::from(x.0), u128::from(y.0), u128::from(P));
                assert_eq!(u128::from((x + y).0), (a + b) % p);
                assert_eq!(u128::from((x - y).0), (a + p - b) % p);
                assert_eq!(u128::from((x * y).0), a * b % p);
            }
            if x.0 != 0 {
                assert_eq!(x * x.inv(), F61(1));
            }
        }
        assert_eq!(F61::from_wide(64 * F61(P - 1).wide(F61(P - 1))), F61(64));
    }

    #[test]
    fn constants_are_dyadic() {
        assert_eq!(F61::from_f64(-0.5) + F61::from_f64(0.5), F61(0));
        assert_eq!(F61::from_f64(0.1) * F61::from_usize(1 << 30), F61::from_f64(0.1 * (1u64 << 30) as f64));
        assert_eq!(F61::from_usize(12_345), F61(12_345));
        assert_eq!(F61::from_f64(0.25) * F61::from_usize(4), F61(1));
        assert_eq!(F61::from_usize((1 << 52) + 1), F61((1 << 52) + 1), "all 53 bits of a constant count");
    }

    /// The bound rests on it. Kills: an opaque function that is linear, a constant, without the key or a setting.
    #[test]
    fn opaque_functions_are_opaque() {
        type Function = fn(F61) -> F61;
        let functions: [(&str, Function); 10] = [
            ("exp", F61::exp),
            ("log", F61::log),
            ("sigmoid", F61::sigmoid),
            ("rsqrt", F61::rsqrt),
            ("clip_factor", |x| F61::clip_factor(x, 0.5)),
            ("adam_scale", |x| F61::adam_scale(x, 1e-8)),
            ("rotary", |x| F61::rotary(x.0 as usize, 1, 4, &1e4.into()).0),
            ("normal_cdf", F61::normal_cdf),
            ("normal_pdf", F61::normal_pdf),
            ("step", F61::step),
        ];
        let _key = Key(2).enter();
        let (a, b) = (F61(3), F61(5));
        for (i, (name, f)) in functions.iter().enumerate() {
            assert_ne!(f(a + b) + f(F61(0)), f(a) + f(b), "{name} is affine");
            assert_ne!(f(a * b), f(a) * f(b), "{name} is a product");
            let here = f(a);
            {
                let _other = Key(3).enter();
                assert_ne!(f(a), here, "{name} does not depend on the key");
            }
            for (other, g) in &functions[i + 1..] {
                assert_ne!(here, g(a), "{name} and {other} are one function");
            }
        }
        assert_ne!(F61::clip_factor(a, 0.5), F61::clip_factor(a, 0.25));
        assert_ne!(F61::adam_scale(a, 1e-8), F61::adam_scale(a, 1e-6));
        let turn = |position, i, base: f64| F61::rotary(position, i, 4, &base.into());
        let (cos, sin) = turn(3, 1, 1e4);
        for other in [turn(2, 1, 1e4), turn(3, 0, 1e4), turn(3, 1, 1e3)] {
            assert!(cos != sin && cos != other.0 && sin != other.1);
        }
    }

    /// Kills: a stabiliser that does not cancel, a permutation that is not one.
    #[test]
    fn exponentials_behave_as_exponentials() {
        let _key = Key(9).enter();
        for i in 0..100 {
            let (a, b, c) = (draw(i), draw(i + 1000), draw(i + 2000));
            assert_eq!(F61::exp_sub(a, b) * F61::exp_sub(b, c), F61::exp_sub(a, c));
            assert_eq!(a.exp().log(), a);
            assert_eq!(F61::exp_sub(F61::lse(b, c), b), c); // e^(m + ln l − m) = l
        }
        assert_eq!(F61::exp_sub(F61::NEG_INF, draw(1)), F61(0));
        assert_ne!(F61::stab(draw(1), draw(2)), draw(1) + draw(2));
    }

    #[test]
    #[should_panic(expected = "sentinel")]
    fn the_sentinel_has_no_arithmetic() {
        let _ = F61::NEG_INF + F61::ONE;
    }
}
