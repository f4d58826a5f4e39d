//! Codes of 8 bits for numbers that have a unit in common: the values of a block of optimizer state.
//!
//! ```text
//! octal(y) = p²·(7(y + 1) − 6p)  with p = 2^⌊log₂ y⌋    8, 36, 64, 176, 288, 400, 512, ...: from 8^i to
//!                                                       8^(i+1) there are 2^i values
//! signed:   127 ± y stands for ±octal(y), y = 0..=127   0 for y = 0, up to ±8⁷
//! unsigned: y − 1 stands for octal(y), y = 1..=255      up to 8⁸; never 0, so that no root of it is
//! ```
//! These are multiples of the unit. Code 255 stands for nothing, so that a number which holds four codes is
//! never NaN. In the field a code has 15 bits, the upper ones of the multiple's canonical integer: a wrong
//! code then is another one, except by a chance of 2⁻¹⁵.
//!
//! Source: Dettmers et al., "8-bit optimizers via block-wise quantization", §2.1 (dynamic tree quantization,
//! with ranges of tens), arXiv:2110.02861.
use crate::Scalar;
use std::fmt::Debug;

/// Kind of codes: of numbers with a sign, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeKind {
    /// Numbers of both signs.
    Signed,
    /// Numbers of 0 and more.
    Unsigned,
}

impl CodeKind {
    /// The multiple that the largest number of a block is of the block's unit, as an exponent of 2.
    #[inline(always)]
    pub(crate) const fn octaves(self) -> i32 {
        match self {
            Self::Signed => 21,
            Self::Unsigned => 24,
        }
    }
}

/// Wide dtypes, whose numbers have codes.
pub trait Coded: Scalar<Wide = Self> {
    /// A code: a byte on floats.
    type Code: Copy + Default + PartialEq + Debug;
    /// The larger magnitude of both; NaN, if one is NaN. Field: by the order of [`Scalar::order`].
    #[must_use]
    fn larger(self, other: Self) -> Self;
    /// 1/x; 0 where that is no number, or x is less than the least normal one.
    #[must_use]
    fn reciprocal(self) -> Self;
    /// The code nearest to this multiple of a unit. Field: by the order of [`Scalar::order`].
    #[must_use]
    fn code(self, kind: CodeKind) -> Self::Code;
    /// Returns the number that holds these codes; no arithmetic is defined on it.
    #[must_use]
    fn from_codes(codes: [Self::Code; 4]) -> Self;
    /// Returns the codes that a number holds.
    #[must_use]
    fn codes(self) -> [Self::Code; 4];

    /// Returns the multiple of a unit that a code stands for.
    #[must_use]
    fn decoded(code: Self::Code, kind: CodeKind) -> Self;
    /// Returns the unit of a block whose largest magnitude is this.
    #[must_use]
    #[inline(always)]
    fn unit(self, kind: CodeKind) -> Self {
        self * Self::from_f64(2f64.powi(-kind.octaves()))
    }
}

/// The multiple that a byte stands for.
#[inline(always)]
fn multiple(code: u8, kind: CodeKind) -> f32 {
    octal(match kind {
        CodeKind::Signed => f32::from(code) - 127.0,
        CodeKind::Unsigned => f32::from(code) + 1.0,
    })
}

/// octal(|y|) with the sign of y, exactly, without branches.
#[inline(always)]
fn octal(y: f32) -> f32 {
    let size = y.abs();
    let p = f32::from_bits(size.to_bits() & 0x7F80_0000);
    (p * p * p.mul_add(-6.0, size.mul_add(7.0, 7.0))).copysign(y)
}

/// y + 1 for the y ≥ 0 whose octal(y) is nearest to a multiple of 0 or more, before it is rounded: linear
/// between the ends of each range, (z/p² + 6p)/7.
#[inline(always)]
fn place(z: f32) -> f32 {
    let z = z.max(1.0);
    let range = (((z.to_bits() >> 23) - 127) * 11) >> 5; // ⌊octave/3⌋, for octaves of 0 to 30
    let slope = f32::from_bits((1.0f32 / 7.0).to_bits() - (range << 24));
    let start = f32::from_bits((6.0f32 / 7.0).to_bits() + (range << 23));
    z.mul_add(slope, start)
}

/// A sum with it is rounded to an integer, which the low bits hold.
const ROUND: f32 = 12_582_912.0;

impl Coded for f32 {
    type Code = u8;
    /// Compares bits, of which those of NaN are the largest.
    #[inline(always)]
    fn larger(self, other: f32) -> f32 {
        f32::from_bits(self.abs().to_bits().max(other.abs().to_bits()))
    }
    #[inline(always)]
    fn reciprocal(self) -> f32 {
        let finite = self.abs() >= f32::MIN_POSITIVE && self.abs() <= f32::MAX;
        if finite { 1.0 / self } else { 0.0 }
    }
    #[inline(always)]
    fn code(self, kind: CodeKind) -> u8 {
        match kind {
            CodeKind::Signed => ((place(self.abs()) - 1.0).copysign(self) + (ROUND + 127.0)).to_bits() as u8,
            CodeKind::Unsigned => (place(self.max(8.0)) + (ROUND - 2.0)).to_bits() as u8,
        }
    }
    #[inline(always)]
    fn decoded(code: u8, kind: CodeKind) -> f32 {
        multiple(code, kind)
    }
    /// Turns the last code into the exponent.
    #[inline(always)]
    fn from_codes(codes: [u8; 4]) -> f32 {
        f32::from_bits(u32::from_le_bytes(codes).rotate_right(1))
    }
    #[inline(always)]
    fn codes(self) -> [u8; 4] {
        self.to_bits().rotate_left(1).to_le_bytes()
    }
}

impl Coded for f64 {
    type Code = u8;
    fn larger(self, other: f64) -> f64 {
        f64::from_bits(self.abs().to_bits().max(other.abs().to_bits()))
    }
    fn reciprocal(self) -> f64 {
        if self.abs().is_normal() { 1.0 / self } else { 0.0 }
    }
    fn code(self, kind: CodeKind) -> u8 {
        (self as f32).code(kind)
    }
    fn decoded(code: u8, kind: CodeKind) -> f64 {
        multiple(code, kind).into()
    }
    /// Holds the same number as `f32`, so that files of both are the same.
    fn from_codes(codes: [u8; 4]) -> f64 {
        f32::from_codes(codes).into()
    }
    fn codes(self) -> [u8; 4] {
        (self as f32).codes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{F61, mix};
    use CodeKind::{Signed, Unsigned};

    /// Values of all codes, in the order of codes.
    fn values(kind: CodeKind) -> Vec<f32> {
        (0..255).map(|code| f32::decoded(code, kind)).collect()
    }

    /// Kills: a range that begins or ends elsewhere, a value taken twice, an end that is not the unit's.
    #[test]
    fn codes_stand_for_evenly_spaced_values_of_each_range() {
        let (signed, unsigned) = (values(Signed), values(Unsigned));
        for (values, kind) in [(&signed, Signed), (&unsigned, Unsigned)] {
            assert!(values.is_sorted_by(|a, b| a < b), "{values:?}");
            assert_eq!(values[254] as f64, 2f64.powi(kind.octaves()));
            assert_eq!(values[254] * 0.5f32.unit(kind), 0.5);
        }
        assert_eq!(unsigned[..8], [8.0, 36.0, 64.0, 176.0, 288.0, 400.0, 512.0, 960.0]);
        assert_eq!((signed[126], signed[127], signed[128]), (-8.0, 0.0, 8.0));
        assert!((0..255).all(|i| signed[i] == -signed[254 - i] && signed[i].max(1.0) <= unsigned[254]));
    }

    /// Multiples of a unit of all sizes, and beside each value and each middle. Kills: rounding towards zero,
    /// a code of another range, 0 for what has a root.
    #[test]
    fn the_nearest_code_is_found() {
        for kind in [Signed, Unsigned] {
            let values = values(kind);
            let beside = values.windows(2).flat_map(|pair| {
                let (low, high) = (pair[0], pair[1]);
                [low, low + 0.49 * (high - low), low + 0.51 * (high - low), high]
            });
            let drawn = (0..20_000u64).map(|i| {
                let size = 2f64.powf((mix(i) % 4096) as f64 / 4096.0 * 30.0 - 30.0);
                (size * 2f64.powi(kind.octaves())) as f32
            });
            let both = |z: f32| if kind == Signed { vec![z, -z] } else { vec![z.abs()] };
            for z in beside.chain(drawn).flat_map(both) {
                let seen = values[usize::from(z.code(kind))];
                let away = values.iter().map(|value| (z - value).abs()).fold(f32::MAX, f32::min);
                let away = if z.abs() < 8.0 { away.max(4.5) } else { away * 1.001 }; // 0 and 8 meet at 4.5
                assert!((z - seen).abs() <= away, "{kind:?} {z}: {seen}, {away} away");
                assert_eq!(z.code(kind), f64::from(z).code(kind));
            }
        }
        assert_eq!([0.0f32.code(Signed), 0.0f32.code(Unsigned)], [127, 0]);
    }

    /// Kills: codes in another order, a code lost in another dtype, bits of NaN.
    #[test]
    fn four_codes_are_a_number_of_every_dtype() {
        for i in 0..100_000u64 {
            let codes = mix(i).to_le_bytes();
            let codes: [u8; 4] = std::array::from_fn(|k| if i % 7 == 0 { 254 } else { codes[k] % 255 });
            let number = f32::from_codes(codes);
            assert!(number.is_finite(), "{codes:?}");
            assert_eq!((f64::from_codes(codes), number.codes()), (number.into(), codes));
            assert_eq!(f64::from_codes(codes).codes(), codes);
            let long = [0, 16, 32, 48].map(|from| (mix(i) >> from & 0x7FFF) as u16);
            assert_eq!(F61::from_codes(long).codes(), long);
        }
        let zeros = [f32::ZERO.codes(), f64::ZERO.codes()];
        assert_eq!((zeros, F61::ZERO.codes(), f32::from_codes([0; 4])), ([[0; 4]; 2], [0; 4], 0.0));
    }

    /// Kills: NaN that a larger number hides, a unit that divides nothing by nothing.
    #[test]
    fn what_is_no_number_stays_so() {
        assert!(f32::NAN.larger(3.0).is_nan() && 3.0f32.larger(-f32::NAN).is_nan());
        assert_eq!((2.0f32.larger(-3.0), f64::NEG_INFINITY.larger(1.0)), (3.0, f64::INFINITY));
        assert_eq!(
            [0.0, 1e-40, f32::INFINITY, f32::NAN, 4.0].map(f32::reciprocal),
            [0.0, 0.0, 0.0, 0.0, 0.25]
        );
        assert_eq!((F61::ZERO.reciprocal(), F61::new(7).reciprocal() * F61::new(7)), (F61::ZERO, F61::ONE));
    }

    /// Kills: a choice that ignores the order, or the element.
    #[test]
    fn the_field_chooses_by_its_order() {
        let [small, large] = [3, F61::P - 2].map(F61::new);
        assert_eq!((small.larger(large), large.larger(small)), (large, large));
        assert_eq!([F61::ZERO, large].map(|x| x.code(Signed)), [0, 0x7FFF]);
        assert!(
            F61::decoded(5, Signed) != F61::decoded(5, Unsigned) && F61::decoded(0, Unsigned) == F61::ZERO
        );
    }
}
