//! f16: the half precision of IEEE 754, with 11 bits of precision and a small range, 2⁻²⁴ to 65 504. Files of
//! weights often have it.
//!
//! Source: Micikevicius et al., "Mixed precision training", arXiv:1710.03740.
use crate::Scalar;
use crate::scalar::operators;

narrow_float! {
    /// A float of 16 bits: a sign, 5 bits of exponent, 10 of mantissa. Compares as floats do.
    F16 "f16", exponent 5;
}

impl From<F16> for f32 {
    /// Converts exactly, without branches: the exponent is moved by a product, which also makes subnormal
    /// numbers normal.
    #[inline(always)]
    fn from(narrow: F16) -> f32 {
        let (sign, size) = (u32::from(narrow.0 & 0x8000) << 16, u32::from(narrow.0 & 0x7FFF));
        let moved = f32::from_bits(size << 13) * f32::from_bits((127 + 112) << 23);
        let no_number = if size >= 0x7C00 { 0x7F80_0000 } else { 0 };
        f32::from_bits(sign | moved.to_bits() | no_number)
    }
}
impl From<f32> for F16 {
    /// Rounds once, without branches, so that loops over it vectorise.
    #[inline(always)]
    fn from(wide: f32) -> Self {
        let (sign, size) = (wide.to_bits() >> 16 & 0x8000, wide.to_bits() & 0x7FFF_FFFF);
        let even = size >> 13 & 1; // the lowest bit kept: ties round up if it is 1
        let normal = size.wrapping_sub(112 << 23).wrapping_add(0xFFF + even) >> 13;
        // the sum is rounded to steps of 2⁻²⁴
        let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if size < 113 << 23 { subnormal } else { normal };
        let rounded = if size >= 65_520.0f32.to_bits() { 0x7C00 } else { finite };
        let nan = 0x7E00 | size >> 13 & 0x3FF;
        Self((sign | if wide.is_nan() { nan } else { rounded }) as u16)
    }
}
