//! Prime fields of 2^61 − 1 and of smaller Mersenne primes: sums are associative, so sharded and unsharded
//! runs agree bit for bit.
//!
//! Functions other than ring operations are keyed hashes ([`crate::Key`]) of a fully reduced value. Applied
//! to a partial sum, such a function gives another value, which the proof detects. Proofs run in [`F61`]. In
//! a small field the same code errs often enough for its errors to be counted, which measures the bound.
#[cfg(test)]
mod tests;

use crate::scalar::operators;
use crate::{CodeKind, Coded, Key, Rope, Scalar, mix};
use bytemuck::AnyBitPattern;
use std::cmp::Ordering;
use std::fmt;

/// An element of the field of the prime 2^BITS − 1. Canonical: `0 ≤ x < p`; one value outside is the sentinel
/// `NEG_INF`.
/// Every bit pattern is a valid value: arithmetic on a word of p or more only gives a result that is no
/// element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, AnyBitPattern)]
pub struct Field<const BITS: u32>(u64);

/// The field of proofs, of 2^61 − 1.
pub type F61 = Field<61>;

impl<const BITS: u32> Field<BITS> {
    /// The prime, 2^BITS − 1.
    pub const P: u64 = {
        assert!(matches!(BITS, 7 | 13 | 17 | 19 | 31 | 61), "2^BITS − 1 is not a prime of 7 to 61 bits");
        (1 << BITS) - 1
    };
    /// Constant that the stabiliser adds, so that it differs from a sum.
    const STAB: Self = Self::new(0x0123_4567_89ab_cdef);

    /// Reduces a word of a few `p` at most, since 2^BITS ≡ 1.
    #[inline(always)]
    const fn reduce(x: u64) -> Self {
        let y = (x & Self::P).wrapping_add(x >> BITS);
        Self(if y >= Self::P { y - Self::P } else { y })
    }
    /// The element `x mod p`.
    #[must_use]
    #[inline(always)]
    pub const fn new(x: u64) -> Self {
        Self::from_wide(x as u128)
    }
    /// The canonical representative, `0 ≤ x < p`; `u64::MAX` for the sentinel.
    #[inline(always)]
    pub fn canonical(self) -> u64 {
        self.0
    }
    /// Returns the element with this canonical representative. Debug builds detect any other word when it is
    /// used in arithmetic.
    #[inline(always)]
    pub fn from_canonical(x: u64) -> Self {
        Self(x)
    }
    /// Reduces a 128-bit sum of products.
    #[inline(always)]
    pub const fn from_wide(x: u128) -> Self {
        let (mut digits, mut shift) = (0, 0);
        while shift < u128::BITS {
            digits = u64::wrapping_add(digits, (x >> shift) as u64 & Self::P);
            shift += BITS;
        }
        Self::reduce(digits)
    }
    /// Exact product before reduction; a sum of up to 64 of them fits into 128 bits.
    #[inline(always)]
    pub fn wide(self, other: Self) -> u128 {
        debug_assert!(self.0 < Self::P && other.0 < Self::P, "arithmetic on the sentinel");
        u128::from(self.0) * u128::from(other.0)
    }
    /// Hashes (key, tag, word) to 61 bits and reduces, so that every element of a small field is equally
    /// likely.
    fn keyed(word: u64, tag: u64) -> Self {
        Self::new(mix(word ^ Key::hash(tag)) >> 3)
    }
    /// Opaque function: a hash of (key, tag, value). The field's own functions have tags below 32.
    #[must_use]
    pub fn hashed(self, tag: u64) -> Self {
        debug_assert!(self.0 < Self::P, "an opaque function of the sentinel");
        Self::keyed(self.0, tag)
    }
    /// Keyed permutation of the field, which stands for exp: four rounds of multiply and shift on BITS bits,
    /// repeated while the result is p, which is no element.
    fn exp(self) -> Self {
        debug_assert!(self.0 < Self::P, "exp of the sentinel");
        let (k, mut x) = (Key::hash(0xE), self.0);
        loop {
            for r in 0..4 {
                x = x.wrapping_add(mix(k ^ r)).wrapping_mul(mix(k ^ (r + 9)) | 1) & Self::P;
                x ^= x >> (BITS / 2 + 1);
            }
            if x != Self::P {
                return Self(x);
            }
        }
    }
    /// Inverse of [`exp`](Self::exp).
    fn log(self) -> Self {
        let (k, mut x) = (Key::hash(0xE), self.0);
        loop {
            for r in (0..4).rev() {
                x ^= x >> (BITS / 2 + 1);
                let c = mix(k ^ (r + 9)) | 1;
                // Newton, mod 2^64
                let inverse = (0..5).fold(c, |i, _| i.wrapping_mul(2u64.wrapping_sub(c.wrapping_mul(i))));
                x = x.wrapping_mul(inverse).wrapping_sub(mix(k ^ r)) & Self::P;
            }
            if x != Self::P {
                return Self(x);
            }
        }
    }
}

impl<const BITS: u32> fmt::Debug for Field<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEG_INF { f.write_str("-inf") } else { write!(f, "{:#x}", self.0) }
    }
}
operators! { [const BITS: u32] Field<BITS>,
    Add add |a, b| {
        debug_assert!(a.0 < Self::P && b.0 < Self::P, "arithmetic on the sentinel");
        Self::reduce(a.0.wrapping_add(b.0))
    };
    Sub sub |a, b| {
        debug_assert!(a.0 < Self::P && b.0 < Self::P, "arithmetic on the sentinel");
        Self::reduce(a.0.wrapping_add(Self::P).wrapping_sub(b.0))
    };
    Neg neg |a| Self(0) - a;
    Mul mul |a, b| Self::from_wide(a.wide(b));
}

/// Defines opaque functions, each by its tag.
macro_rules! opaque {
    ($($name:ident = $tag:literal),*) => { $(fn $name(self) -> Self {
        self.hashed($tag)
    })* };
}

impl<const BITS: u32> Scalar for Field<BITS> {
    const NAME: &'static str = match BITS {
        7 => "f7",
        13 => "f13",
        17 => "f17",
        19 => "f19",
        31 => "f31",
        _ => "f61",
    };
    const ZERO: Self = Self(0);
    const ONE: Self = Self(1);
    const NEG_INF: Self = Self(u64::MAX);
    type Wide = Self;
    type Priced = Self;
    fn from_f64(x: f64) -> Self {
        if x == 0.0 {
            return Self(0);
        }
        debug_assert!(x.is_normal(), "{x} has no image in the field");
        let bits = x.abs().to_bits();
        let mantissa = Self::new((bits & ((1 << 52) - 1)) | 1 << 52);
        let exponent = ((bits >> 52) as i64 - 1075).rem_euclid(i64::from(BITS)); // 2 has order BITS
        let y = mantissa * Self(1 << exponent);
        if x < 0.0 { -y } else { y }
    }
    /// Computes the inverse as a power.
    ///
    /// # Panics
    /// On zero, which each division of a random run meets with probability about 1/p. No value would be
    /// right: stabilisers differ between shardings, so only one side may divide by zero. The run therefore
    /// ends without a verdict.
    fn inv(self) -> Self {
        assert!(self.0 != 0, "division by zero in the field");
        self.pow(Self::P as usize - 2)
    }
    fn order(self, other: Self) -> Ordering {
        self.0.wrapping_add(1).cmp(&other.0.wrapping_add(1)) // the sentinel becomes 0
    }
    fn stab(a: Self, b: Self) -> Self {
        match (a == Self::NEG_INF, b == Self::NEG_INF) {
            (true, _) => b,
            (_, true) => a,
            _ => a + b + Self::STAB,
        }
    }
    fn exp_sub(a: Self, b: Self) -> Self {
        assert!(b != Self::NEG_INF, "a row without a valid entry: exp(x − (−inf))");
        if a == Self::NEG_INF {
            Self(0)
        } else if a == b {
            Self(1)
        } else {
            a.exp() * b.exp().inv()
        }
    }
    fn lse(m: Self, l: Self) -> Self {
        (l * m.exp()).log()
    }
    opaque! { sigmoid = 1, normal_cdf = 9, normal_pdf = 10, step = 11, rsqrt = 2 }
    /// Opaque, but 0 at 0: weights that are always 0 stay 0.
    fn sign(self) -> Self {
        if self == Self::ZERO { self } else { self.hashed(12) }
    }
    /// Hashes a word of 61 bits in every field; in a small one, two angles would otherwise be equal by
    /// chance.
    fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> (Self, Self) {
        let word = mix(position as u64 ^ mix(i as u64 ^ mix(d as u64 ^ rope.hash()))) >> 3;
        let at = F61::new(word).canonical();
        (Self::keyed(at, 5), Self::keyed(at, 6))
    }
    fn clip_factor(norm2: Self, limit: f64) -> Self {
        norm2.hashed(limit.to_bits() ^ 4)
    }
    fn adam_scale(v: Self, eps: f64) -> Self {
        v.hashed(eps.to_bits() ^ 7)
    }
    fn sample(key: u64, _std: f64) -> Self {
        Self::keyed(key, 8)
    }
}

impl<const BITS: u32> Coded for Field<BITS> {
    type Code = u16;
    fn larger(self, other: Self) -> Self {
        if self.order(other).is_lt() { other } else { self }
    }
    fn reciprocal(self) -> Self {
        if self == Self::ZERO { self } else { self.inv() }
    }
    fn code(self, _: CodeKind) -> u16 {
        ((u128::from(self.canonical()) << 15) / u128::from(Self::P)) as u16
    }
    /// Returns another element for each code, also where the kinds differ; 0 for that of 0.
    fn decoded(code: u16, kind: CodeKind) -> Self {
        Self::new(u64::from(code) * u64::from(kind.octaves().unsigned_abs()))
    }
    fn from_codes(codes: [u16; 4]) -> Self {
        Self::from_canonical(codes.iter().rev().fold(0, |all, code| all << 15 | u64::from(*code)))
    }
    fn codes(self) -> [u16; 4] {
        [0, 15, 30, 45].map(|from| (self.canonical() >> from & 0x7FFF) as u16)
    }
}
