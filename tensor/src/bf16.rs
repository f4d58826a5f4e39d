//! bf16: the upper half of an `f32`, with the same range, 8 bits of precision and half the memory.
//!
//! The dtype is for storage, not for arithmetic: operators and functions compute in `f32` and round each
//! result to the nearest bf16, ties to even. Sums of many terms belong into [`Scalar::Wide`]. Source:
//! Kalamkar et al., "A study of BFLOAT16 for deep learning training", arXiv:1905.12322.
use crate::safetensors::rounding;
use crate::scalar::operators;
use crate::{Real, Rope, Scalar};
use bytemuck::{Pod, Zeroable};
use std::cmp::Ordering;
use std::fmt;

/// A float of 16 bits: a sign, 8 bits of exponent, 7 of mantissa. Compares as floats do.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    /// Returns the value of these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
    /// Returns the bits: sign, exponent and mantissa.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        self.0
    }
    /// Applies a function of `f32` and rounds its result.
    #[inline(always)]
    fn by(self, f: impl Fn(f32) -> f32) -> Self {
        Self::narrow(f(self.widen()))
    }
    /// Applies a function of two `f32` and rounds its result.
    #[inline(always)]
    fn of(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self::narrow(f(self.widen(), other.widen()))
    }
}

impl fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.widen().fmt(f)
    }
}
impl PartialEq for Bf16 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.widen() == other.widen()
    }
}
impl PartialOrd for Bf16 {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.widen().partial_cmp(&other.widen())
    }
}
operators! { [] Bf16,
    Add add |a, b| a.of(b, f32::add);
    Sub sub |a, b| a.of(b, f32::sub);
    Mul mul |a, b| a.of(b, f32::mul);
    Neg neg |a| Self(a.0 ^ 0x8000);
}
impl From<Bf16> for f32 {
    #[inline(always)]
    fn from(narrow: Bf16) -> f32 {
        f32::from_bits(u32::from(narrow.0) << 16)
    }
}
impl From<f32> for Bf16 {
    /// Rounds once, without branches, so that loops over it vectorise.
    #[inline(always)]
    fn from(wide: f32) -> Self {
        let bits = wide.to_bits();
        let even = bits >> 16 & 1; // the lowest bit kept: ties round up if it is 1
        let rounded = bits.wrapping_add(0x7FFF + even) >> 16;
        let nan = bits >> 16 | 0x40; // a quiet NaN: the bits that made it NaN may all lie in the lower half
        Self(if wide.is_nan() { nan } else { rounded } as u16)
    }
}

/// Functions that are those of `f32`, each result rounded.
macro_rules! by_f32 {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self) -> Self {
            self.by(f32::$name)
        }
    )*};
}

impl Scalar for Bf16 {
    const NAME: &'static str = "bf16";
    const ZERO: Self = Self(0);
    const ONE: Self = Self(0x3F80);
    const NEG_INF: Self = Self(0xFF80);
    type Wide = f32;
    /// Rounds once: rounding to 32 bits first would move a value beside a midpoint onto the midpoint.
    fn from_f64(x: f64) -> Self {
        Self(rounding::bits::<8>(x))
    }
    /// Computes the power of the wide value and rounds once.
    fn pow(self, n: usize) -> Self {
        self.by(|x| Scalar::pow(x, n))
    }
    by_f32! { inv sigmoid normal_cdf normal_pdf step sign rsqrt }
    #[inline(always)]
    fn order(self, other: Self) -> Ordering {
        self.widen().order(other.widen())
    }
    #[inline(always)]
    fn stab(a: Self, b: Self) -> Self {
        a.of(b, f32::stab)
    }
    #[inline(always)]
    fn exp_sub(a: Self, b: Self) -> Self {
        a.of(b, f32::exp_sub)
    }
    #[inline(always)]
    fn lse(m: Self, l: Self) -> Self {
        m.of(l, f32::lse)
    }
    /// Computes from the count itself, which bf16 may be unable to represent.
    fn inv_sqrt(n: usize) -> Self {
        Self::narrow(f32::inv_sqrt(n))
    }
    fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> (Self, Self) {
        let (cos, sin) = f32::rotary(position, i, d, rope);
        (Self::narrow(cos), Self::narrow(sin))
    }
    #[inline(always)]
    fn clip_factor(norm2: Self, limit: f64) -> Self {
        norm2.by(|norm2| f32::clip_factor(norm2, limit))
    }
    #[inline(always)]
    fn adam_scale(v: Self, eps: f64) -> Self {
        v.by(|v| f32::adam_scale(v, eps))
    }
    /// Rounds the value that `f32` draws with this key.
    fn sample(key: u64, std: f64) -> Self {
        Self::narrow(f32::sample(key, std))
    }
}

impl Real for Bf16 {
    fn to_f64(self) -> f64 {
        f64::from(self.widen())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    fn all() -> impl Iterator<Item = Bf16> {
        (0..=u16::MAX).map(Bf16)
    }

    /// Kills: a sign, a subnormal or an infinity that is lost, NaN that becomes a number.
    #[test]
    fn every_number_survives_being_wide() {
        for x in all() {
            let back = Bf16::narrow(x.widen());
            let quiet = if x.widen().is_nan() { 0x40 } else { 0 };
            assert_eq!((back.0, back.widen().is_nan()), (x.0 | quiet, quiet > 0), "{:#x}", x.0);
            assert_eq!(Bf16::from_f64(x.to_f64()) == x, quiet == 0);
        }
        // only its lower half makes it NaN
        assert!(Bf16::narrow(f32::from_bits(0x7F80_0001)).widen().is_nan());
        assert!(Bf16::narrow(f32::from_bits(u32::MAX)).widen().is_nan()); // rounding would carry out of it
    }

    /// The nearest of its two neighbours, found by their distances; the even one of two as near.
    fn slowly(x: f32) -> Bf16 {
        let (x, low) = (f64::from(x), Bf16((x.to_bits() >> 16) as u16)); // towards zero
        let high = Bf16(low.0 + 1);
        let limit = 2f64.powi(128); // stands in infinity's place: where the next number would be
        let value = |y: Bf16| if y.widen().is_infinite() { limit.copysign(y.to_f64()) } else { y.to_f64() };
        let [below, above] = [low, high].map(|y| (x - value(y)).abs());
        if below < above || (below == above && low.0 % 2 == 0) { low } else { high }
    }

    /// Every value, the midpoint to the next one, the values beside both, and drawn ones. Kills: rounding
    /// towards zero, ties away from zero, an overflow that stays finite.
    #[test]
    fn rounding_equals_the_slow_definition() {
        let beside = [0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF];
        let near = all().flat_map(|x| beside.map(|low| u32::from(x.0) << 16 | low));
        let drawn = (0..200_000u64).map(|i| mix(i) as u32);
        for x in near.chain(drawn).map(f32::from_bits).filter(|x| x.is_finite()) {
            let seen = Bf16::narrow(x);
            assert_eq!(seen.0, slowly(x).0, "{x:e} {:#x}", x.to_bits());
            assert_eq!(seen.0, Bf16::from_f64(f64::from(x)).0, "{x:e} from 64 bits");
        }
        let ends = [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY].map(|x| Bf16::narrow(x).0);
        assert_eq!(ends, [0x7F80, 0xFF80, 0x7F80, 0xFF80]);
    }

    /// Kills: a constant that is rounded to 32 bits first.
    #[test]
    fn constants_round_once() {
        let beside_the_middle = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(Bf16::from_f64(beside_the_middle).0, 0x3F81);
        assert_eq!(Bf16::narrow(beside_the_middle as f32).0, 0x3F80);
        assert_eq!(Bf16::from_usize(257).0, Bf16::from_usize(256).0);
        assert_eq!(Bf16::inv_sqrt(16_777_217).widen(), 2f32.powi(-12));
    }

    /// Kills: a function of another's, an argument that is rounded once more, comparisons by bits.
    #[test]
    fn results_are_those_of_f32_rounded() {
        type Of<S> = fn(S, S) -> S;
        let [x, y] = [1.3, -0.7].map(Bf16::from_f64);
        let (wide_x, wide_y) = (x.widen(), y.widen());
        macro_rules! both {
            ($($of:expr),*) => { [$(($of as Of<Bf16>, $of as Of<f32>)),*] };
        }
        let functions = both![
            |x, y| x + y,
            |x, y| x - y,
            |x, y| x * y,
            |x, _| -x,
            |x, _| x.inv(),
            |x, _| Scalar::pow(x, 5),
            Scalar::stab,
            Scalar::exp_sub,
            |x, y| Scalar::lse(y, x),
            |_, y| y.sigmoid(),
            |x, _| x.normal_cdf(),
            |_, y| y.normal_pdf(),
            |x, y| x.step() + y.step(),
            |x, _| x.rsqrt(),
            |x, _| Scalar::clip_factor(x, 0.9),
            |x, _| Scalar::adam_scale(x, 0.1),
            |_, _| Scalar::sample(9, 2.0)
        ];
        for (i, (narrow, wide)) in functions.into_iter().enumerate() {
            assert_eq!(narrow(x, y).0, Bf16::narrow(wide(wide_x, wide_y)).0, "function {i}");
        }
        let (zero, nan) = (Bf16::ZERO, Bf16::narrow(f32::NAN));
        assert!(zero == -zero && nan != nan && y < x && (nan < x) == (x < nan));
        assert!(Bf16::NEG_INF.widen() == f32::NEG_INFINITY && Bf16::ONE.widen() == 1.0);
        assert_eq!((Bf16::exp_sub(Bf16::NEG_INF, x), format!("{y:?}")), (zero, "-0.69921875".into()));
    }
}
