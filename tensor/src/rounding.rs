//! Rounding to a float dtype of fewer bits: to the nearest value, ties to even.
//!
//! Values of 64 bits are rounded in one step: rounding to 32 bits first would move a value beside a midpoint
//! onto the midpoint.

/// The bits of infinity, of a float of 16 bits with so many of exponent.
pub(crate) const fn infinity(exponent: u32) -> u16 {
    0x7FFF >> (15 - exponent) << (15 - exponent)
}

/// Returns the 16 bits of a float with a sign, `EXPONENT` bits of exponent, and a mantissa.
#[inline]
pub(crate) fn bits<const EXPONENT: u32>(x: f64) -> u16 {
    let (mantissa, bias) = (15 - EXPONENT, (1i32 << (EXPONENT - 1)) - 1);
    let sign = (x.to_bits() >> 48) as u16 & 0x8000;
    let infinity = infinity(EXPONENT);
    if x.is_nan() {
        return sign | infinity | 1 << (mantissa - 1);
    }
    let exponent = ((x.to_bits() >> 52) as i32 & 0x7FF) - 1023; // 2^exponent ≤ |x| < 2^(exponent + 1)
    if exponent > bias {
        return sign | infinity;
    }
    let exponent = exponent.max(1 - bias); // subnormals are multiples of the same step
    let step = f64::from_bits(((exponent - mantissa as i32 + 1023) as u64) << 52);
    // the quotient is exact, as a step is a power of two
    let steps = (x.abs() / step).round_ties_even() as u16;
    // steps include the mantissa's leading one, and may carry
    sign | ((((exponent + bias - 1) as u16) << mantissa) + steps)
}

#[cfg(test)]
mod tests {
    use crate::dtype::{Dtype, append};
    use crate::{Bf16, F16};

    fn rounded(x: f64, dtype: Dtype) -> (u16, bool) {
        let mut bytes = Vec::new();
        let fits = append(x, dtype, &mut bytes);
        (u16::from_le_bytes(bytes.try_into().unwrap()), fits)
    }

    /// Every value of both dtypes, the midpoint of every two neighbours, and the values next to each
    /// midpoint. Kills: rounding towards zero, ties away from zero, rounding twice, a lost sign, subnormals
    /// taken for normal.
    #[test]
    fn every_float_rounds_to_the_nearest_and_ties_to_even() {
        for (dtype, value, infinity) in [
            (Dtype::F16, (|bits| F16::from_bits(bits).into()) as fn(u16) -> f32, 0x7C00u16),
            (Dtype::BF16, |bits| Bf16::from_bits(bits).into(), 0x7F80),
        ] {
            let value = |bits: u16| f64::from(value(bits));
            for bits in 0..infinity {
                let (low, high) = (value(bits), if bits + 1 < infinity { value(bits + 1) } else { f64::NAN });
                // where the next would be
                let high = if high.is_nan() { 2.0 * low - value(bits - 1) } else { high };
                let middle = low + (high - low) / 2.0;
                let even = bits + bits % 2;
                for (x, wanted) in [
                    (low, bits),
                    (middle.next_down(), bits),
                    (middle, even),
                    (middle.next_up(), bits + 1),
                    (high.next_down(), bits + 1),
                ] {
                    assert_eq!(rounded(x, dtype), (wanted, wanted < infinity), "{dtype} {x:e}");
                    assert_eq!(rounded(-x, dtype), (wanted | 0x8000, wanted < infinity), "{dtype} -{x:e}");
                }
            }
            for x in [f64::INFINITY, f64::NEG_INFINITY] {
                assert_eq!((value(rounded(x, dtype).0), rounded(x, dtype).1), (x, true));
            }
            assert!(value(rounded(f64::NAN, dtype).0).is_nan() && rounded(f64::NAN, dtype).1);
            assert_eq!(rounded(f64::MAX, dtype), (infinity, false));
            assert_eq!(rounded(f64::from_bits(1), dtype), (0, true));
        }
    }

    #[test]
    fn wide_kinds_are_as_the_language_has_them() {
        let bytes = |x: f64, dtype: Dtype| {
            let mut bytes = Vec::new();
            (append(x, dtype, &mut bytes), bytes)
        };
        assert_eq!(bytes(0.1, Dtype::F64), (true, 0.1f64.to_le_bytes().to_vec()));
        assert_eq!(bytes(0.1, Dtype::F32), (true, 0.1f32.to_le_bytes().to_vec()));
        assert!(!bytes(1e39, Dtype::F32).0 && bytes(f64::NAN, Dtype::F32).0 && bytes(1e308, Dtype::F64).0);
    }
}
