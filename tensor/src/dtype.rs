//! Dtypes of the format.
use crate::rounding::{bits, infinity};
use crate::{Bf16, F16, Scalar};
pub use ::safetensors::Dtype;
use bytemuck::{AnyBitPattern, pod_read_unaligned};
use serde::Deserialize;
use serde::de::{IntoDeserializer, value::Error};

// The format is little-endian, as is every machine that this runs on: elements are copied as they lie.
const _: () =
    assert!(cfg!(target_endian = "little"), "safetensors are read and written on little-endian machines");

/// Names of the dtypes of whole bytes. Tensors of other dtypes are refused.
pub(crate) const KINDS: &str = "F64, F32, F16, BF16, F8_E5M2, F8_E4M3, F8_E8M0, F8_E5M2FNUZ, F8_E4M3FNUZ, \
    C64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL";

/// Bytes of one element; 0 if it is less than a byte.
pub(crate) fn size(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}
/// True if elements of this dtype can be read as floats.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}
/// Returns the dtype of whole bytes with this name.
pub(crate) fn named(name: &str) -> Option<Dtype> {
    let known: Result<Dtype, Error> = Dtype::deserialize(name.into_deserializer());
    known.ok().filter(|dtype| dtype.bitsize() % 8 == 0)
}

/// Dtype of this program that files hold bit for bit.
pub trait Storable: bytemuck::Pod {
    /// Dtype in files.
    const DTYPE: Dtype;
}
impl Storable for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Storable for F16 {
    const DTYPE: Dtype = Dtype::F16;
}
impl Storable for Bf16 {
    const DTYPE: Dtype = Dtype::BF16;
}
impl Storable for f64 {
    const DTYPE: Dtype = Dtype::F64;
}
impl Storable for u64 {
    const DTYPE: Dtype = Dtype::U64;
}

/// Appends the bytes of a value in this dtype; returns false if a finite value became infinite.
///
/// # Panics
/// If the dtype is not a float of 16 bits or more.
#[inline]
pub(crate) fn append(x: f64, dtype: Dtype, to: &mut Vec<u8>) -> bool {
    let finite = match dtype {
        Dtype::F64 => {
            to.extend(x.to_le_bytes());
            return true;
        }
        Dtype::F32 => {
            to.extend((x as f32).to_le_bytes());
            (x as f32).is_finite()
        }
        Dtype::F16 => append_bits::<5>(x, to),
        Dtype::BF16 => append_bits::<8>(x, to),
        _ => panic!("{dtype} is not a float of at least 16 bits"),
    };
    finite || !x.is_finite()
}

fn append_bits<const EXPONENT: u32>(x: f64, to: &mut Vec<u8>) -> bool {
    let bits = bits::<EXPONENT>(x);
    to.extend(bits.to_le_bytes());
    bits & 0x7FFF < infinity(EXPONENT)
}

/// Consecutive elements of a file, of a float dtype.
#[derive(Clone, Copy, Debug)]
pub struct FileFloats<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: Dtype,
}

impl FileFloats<'_> {
    /// Converts as many as there are in `to`, each as a constant; copies those of the same dtype.
    #[inline(always)]
    pub(crate) fn convert<E: Scalar>(&self, to: &mut [E]) {
        let rounded = |x: f32| E::narrow(E::Wide::from_f64(x.into())); // once, as f32 is as wide
        match self.dtype {
            Dtype::BF16 if E::NAME == Bf16::NAME => self.each(to, |x: E| x),
            Dtype::F16 if E::NAME == F16::NAME => self.each(to, |x: E| x),
            Dtype::F64 => self.each(to, E::from_f64),
            Dtype::F16 => self.each(to, |x| rounded(F16::widen(x))),
            Dtype::BF16 => self.each(to, |x| rounded(Bf16::widen(x))),
            _ => self.each(to, rounded), // copies an f32
        }
    }
    #[inline(always)]
    fn each<T: AnyBitPattern, E>(&self, to: &mut [E], converted: impl Fn(T) -> E) {
        for (x, bytes) in to.iter_mut().zip(self.bytes.chunks_exact(size_of::<T>())) {
            *x = converted(pod_read_unaligned(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a name that is said to be known and is not, a kind of half bytes, one that is told twice.
    #[test]
    fn names_and_sizes_are_the_formats_own() {
        let kinds: Vec<_> = KINDS.split(", ").map(|name| (name, named(name).unwrap())).collect();
        for (at, (name, dtype)) in kinds.iter().enumerate() {
            assert_eq!((*name, dtype.bitsize()), (&*dtype.to_string(), 8 * size(*dtype)));
            assert!(kinds[..at].iter().all(|(_, other)| other != dtype));
        }
        assert_eq!((kinds.len(), named("f32"), named("F4")), (19, None, None));
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
            let [half, brain] = [F16::from_bits(bits).widen(), Bf16::from_bits(bits).widen()];
            for (seen, wanted) in [(half, meaning(5)), (brain, meaning(8))] {
                let seen = f64::from(seen);
                assert!(seen.to_bits() == wanted.to_bits() || seen.is_nan() && wanted.is_nan(), "{bits:#x}");
            }
        }
    }
}
