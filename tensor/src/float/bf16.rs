//! bf16: the upper half of an `f32`, with the same range, 8 bits of precision and half the memory.
//!
//! Source: Kalamkar et al., "A study of BFLOAT16 for deep learning training", arXiv:1905.12322.
use crate::Scalar;
use crate::scalar::operators;

narrow_float! {
    /// A float of 16 bits: a sign, 8 bits of exponent, 7 of mantissa. Compares as floats do.
    Bf16 "bf16", exponent 8;
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
