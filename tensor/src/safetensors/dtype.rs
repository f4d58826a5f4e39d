//! The kinds of number that the format names.
use crate::Bf16;
use std::fmt;

// The format is little-endian, and so is every machine that this runs on: numbers are copied as they lie.
const _: () =
    assert!(cfg!(target_endian = "little"), "safetensors are read and written on little-endian machines");

macro_rules! dtypes {
    ($($(#[$doc:meta])+ $dtype:ident = $name:literal, $size:literal;)+) => {
        /// A kind of number that the format names, of whole bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Dtype { $($(#[$doc])+ $dtype,)+ }

        impl Dtype {
            /// Every kind.
            pub const ALL: &[Dtype] = &[$(Dtype::$dtype),+];

            /// Bytes of one number.
            pub const fn size(self) -> usize {
                match self { $(Dtype::$dtype => $size,)+ }
            }
            /// What files call it.
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$dtype => $name,)+ }
            }
            /// The kind with this name.
            pub fn named(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$dtype),)+ _ => None }
            }
        }
    };
}
dtypes! {
    /// 64-bit float.
    F64 = "F64", 8;
    /// 32-bit float.
    F32 = "F32", 4;
    /// 16-bit float: 5 bits of exponent.
    F16 = "F16", 2;
    /// 16-bit float: the upper half of an [`F32`](Dtype::F32).
    Bf16 = "BF16", 2;
    /// 8-bit float: 5 bits of exponent.
    F8E5M2 = "F8_E5M2", 1;
    /// 8-bit float: 4 bits of exponent.
    F8E4M3 = "F8_E4M3", 1;
    /// 8-bit power of two.
    F8E8M0 = "F8_E8M0", 1;
    /// 8-bit float: 5 bits of exponent, no infinities, one zero.
    F8E5M2Fnuz = "F8_E5M2FNUZ", 1;
    /// 8-bit float: 4 bits of exponent, no infinities, one zero.
    F8E4M3Fnuz = "F8_E4M3FNUZ", 1;
    /// Two 32-bit floats.
    C64 = "C64", 8;
    /// 64-bit integer.
    I64 = "I64", 8;
    /// 32-bit integer.
    I32 = "I32", 4;
    /// 16-bit integer.
    I16 = "I16", 2;
    /// 8-bit integer.
    I8 = "I8", 1;
    /// 64-bit count.
    U64 = "U64", 8;
    /// 32-bit count.
    U32 = "U32", 4;
    /// 16-bit count.
    U16 = "U16", 2;
    /// Byte.
    U8 = "U8", 1;
    /// Truth value, one byte.
    Bool = "BOOL", 1;
}

impl Dtype {
    /// Whether its numbers can be read as floats.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number of this program that files hold bit for bit.
pub trait Storable: bytemuck::Pod {
    /// What files call it.
    const DTYPE: Dtype;
}
impl Storable for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Storable for f64 {
    const DTYPE: Dtype = Dtype::F64;
}
impl Storable for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
impl Storable for u64 {
    const DTYPE: Dtype = Dtype::U64;
}

/// The number that 16 bits mean as an [`F16`](Dtype::F16); exact.
pub(super) fn f16(bits: u16) -> f32 {
    let (sign, magnitude) = (u32::from(bits >> 15) << 31, u32::from(bits & 0x7FFF));
    let (exponent, mantissa) = (magnitude >> 10, magnitude & 0x3FF);
    f32::from_bits(
        sign | match exponent {
            0 => (mantissa as f32 * (0.5f32).powi(24)).to_bits(),
            31 => 0xFF << 23 | mantissa << 13,
            _ => (exponent + 127 - 15) << 23 | mantissa << 13,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a size that differs from the format's, two kinds of one name.
    #[test]
    fn names_and_sizes_are_the_formats_own() {
        for dtype in Dtype::ALL {
            let theirs: ::safetensors::Dtype = serde_json::from_str(&format!("\"{dtype}\"")).unwrap();
            assert_eq!(
                (theirs.bitsize(), Dtype::named(dtype.name())),
                (8 * dtype.size(), Some(*dtype)),
                "{dtype}"
            );
        }
        assert_eq!((Dtype::named("f32"), Dtype::named("F4")), (None, None));
    }

    /// Kills: a wrong bias, a lost sign, subnormal numbers read as normal ones, NaN read as infinity.
    #[test]
    fn every_16_bit_float_equals_its_definition() {
        for bits in 0..=u16::MAX {
            let meaning = |exponent_bits: i32| {
                let mantissa_bits = 15 - exponent_bits;
                let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
                let (exponent, mantissa) =
                    (i32::from(bits & 0x7FFF) >> mantissa_bits, f64::from(bits & ((1 << mantissa_bits) - 1)));
                let (bias, ones) = ((1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1);
                let part = mantissa * 0.5f64.powi(mantissa_bits);
                match exponent {
                    0 => sign * part * 2f64.powi(1 - bias),
                    e if e == ones && mantissa == 0.0 => sign * f64::INFINITY,
                    e if e == ones => f64::NAN,
                    e => sign * (1.0 + part) * 2f64.powi(e - bias),
                }
            };
            for (seen, wanted) in [(f16(bits), meaning(5)), (Bf16::from_bits(bits).into(), meaning(8))] {
                let seen = f64::from(seen);
                assert!(seen.to_bits() == wanted.to_bits() || seen.is_nan() && wanted.is_nan(), "{bits:#x}");
            }
        }
    }
}
