//! Floats: the dtypes that compute results, at speed.
#[macro_use]
mod narrow;
pub(crate) mod bf16;
pub(crate) mod f16;

use crate::{Rope, Scalar, mix};
use std::cmp::Ordering;

/// List of the floats that runs can have: a dtype is one file, and a line here. `every_float!(then,
/// arguments)` calls the macro `then` with these arguments and all lines: a variant's name, the type, and
/// words.
#[macro_export]
macro_rules! every_float {
    ($($then:ident)::+ $(, $arguments:tt)*) => {
        $($then)::+! { $($arguments)*
            F32 f32, "32 bits";
            F16 $crate::F16, "16 bits, more precise than bf16, but of a small range: training scales the loss";
            Bf16 $crate::Bf16, "16 bits, the upper half of f32; gradients, masters, moments and sums are f32";
            F64 f64, "64 bits: the reference for the others";
        }
    };
}

/// Dtype whose values have a magnitude: floats. Reports (losses, probabilities, times) need one; layers do
/// not.
pub trait Real: Scalar + PartialOrd {
    /// Converts to `f64`, exactly.
    fn to_f64(self) -> f64;
}

/// Draws from the standard normal distribution, by Box and Muller from two hashes of `key`.
fn normal(key: u64) -> f64 {
    let uniform = |k: u64| ((mix(k) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (-2.0 * uniform(key ^ 0x55).ln()).sqrt() * (std::f64::consts::TAU * uniform(mix(key) ^ 0xAA)).cos()
}

macro_rules! float {
    ($t:ident, $exp:path, $normal:path, $tanh:path) => {
        impl Scalar for $t {
            const NAME: &'static str = stringify!($t);
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const NEG_INF: $t = <$t>::NEG_INFINITY;
            type Wide = Self;
            type Priced = Self;
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }
            #[inline(always)]
            fn inv(self) -> $t {
                1.0 / self
            }
            #[inline(always)]
            fn order(self, other: $t) -> Ordering {
                self.partial_cmp(&other).unwrap_or_else(|| other.is_nan().cmp(&self.is_nan()))
            }
            #[inline(always)]
            fn stab(a: $t, b: $t) -> $t {
                if a > b { a } else { b }
            }
            #[inline(always)]
            fn exp_sub(a: $t, b: $t) -> $t {
                $exp(a - b)
            }
            #[inline(always)]
            fn lse(m: $t, l: $t) -> $t {
                m + l.ln()
            }
            #[inline(always)]
            fn sigmoid(self) -> $t {
                1.0 / (1.0 + $exp(-self))
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn normal_cdf(self) -> $t {
                $normal(self)
            }
            #[inline(always)]
            fn normal_pdf(self) -> $t {
                (0.398_942_280_401_432_7_f64 as $t) * $exp(-0.5 * self * self)
            }
            #[inline(always)]
            fn step(self) -> $t {
                if self > 0.0 { 1.0 } else { 0.0 }
            }
            #[inline(always)]
            fn sign(self) -> $t {
                if self > 0.0 {
                    1.0
                } else if self < 0.0 {
                    -1.0
                } else {
                    self
                }
            }
            #[inline(always)]
            fn rsqrt(self) -> $t {
                1.0 / self.sqrt()
            }
            fn rotary(position: usize, i: usize, d: usize, rope: &Rope) -> ($t, $t) {
                let (sin, cos) = (position as f64 * rope.frequency(i, d)).sin_cos();
                ((cos * rope.magnitude()) as $t, (sin * rope.magnitude()) as $t)
            }
            #[inline(always)]
            fn clip_factor(norm2: $t, limit: f64) -> $t {
                (limit as $t / norm2.sqrt()).min(1.0)
            }
            #[inline(always)]
            fn adam_scale(v: $t, eps: f64) -> $t {
                1.0 / (v.sqrt() + eps as $t)
            }
            fn sample(key: u64, std: f64) -> $t {
                (normal(key) * std) as $t
            }
        }
        impl Real for $t {
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    };
}
float!(f32, exp_f32, normal_f32, tanh_f32);
float!(f64, f64::exp, normal_f64, f64::tanh);

/// Computes tanh x to about 2 ulp, without branches: near 0 by its series, else from e^(2x).
#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let s = x * x;
    let series = s.mul_add(62.0 / 2835.0, -17.0 / 315.0).mul_add(s, 2.0 / 15.0).mul_add(s, -1.0 / 3.0);
    let near = (series * s).mul_add(x, x);
    let far = 1.0 - 2.0 / (exp_f32(2.0 * x) + 1.0);
    if s < 0.0625 { near } else { far }
}

/// Computes e^x to about 1 ulp, without branches, and without calls if the machine has fused multiply-add, so
/// that loops over it vectorise.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; the polynomial for e^r is that of the Cephes library (Moshier, 1989).
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer held in the low bits
    let c = if x > 88.37 { 88.37 } else { x }; // not `min`, which would make NaN a number
    let t = c.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, c));
    let p = 1.987_569_1e-4_f32.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3).mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1).mul_add(r, 0.5);
    let y = (p * r).mul_add(r, r + 1.0) * f32::from_bits(t.to_bits().wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y }
}

fn normal_f64(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// Computes Φ(x), and vectorises as `exp_f32` does. Below 0, Φ(x) is e^(−x²/2)·t·p(t) with
/// t = 1/(1 + 0.32·|x|). p was interpolated at Chebyshev's nodes; in exact arithmetic the result would be
/// within 6e-8 of the value.
#[inline(always)]
fn normal_f32(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.32 * x.abs());
    let p = -0.021_623_133;
    let p = p * t + 0.097_935_215;
    let p = p * t - 0.151_607_69;
    let p = p * t + 0.070_468_26;
    let p = p * t - 0.012_533_999;
    let p = p * t + 0.059_799_325;
    let p = p * t + 0.087_593_53;
    let p = p * t + 0.114_647_03;
    let p = p * t + 0.127_659_92;
    let p = p * t + 0.127_661_54;
    let below = exp_f32(-0.5 * x * x) * t * p;
    if x < 0.0 { below } else { 1.0 - below }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a wrong coefficient, rounding towards zero, a missing underflow.
    #[test]
    fn exp_f32_equals_exp_to_two_ulp() {
        for i in -8600..8800 {
            let x = i as f32 / 100.0 + 0.003;
            let (ours, truth) = (f64::from(exp_f32(x)), f64::from(x).exp());
            assert!((ours / truth - 1.0).abs() < 2.0 * f64::from(f32::EPSILON), "{x}: {ours} {truth}");
        }
        assert!(exp_f32(f32::NAN).is_nan() && f32::exp_sub(f32::NAN, 0.0).is_nan());
        assert_eq!((exp_f32(f32::NEG_INFINITY), exp_f32(-100.0), exp_f32(0.0)), (0.0, 0.0, 1.0));
    }

    /// Values computed outside of the project; that of the hash is the first that its authors' generator
    /// gives. Kills: another hash or draw, with which a seed would give another model.
    #[test]
    fn a_key_gives_the_sample_that_it_always_gave() {
        assert_eq!([mix(0), mix(1)], [0xe220_a839_7b1d_cdaf, 0x910a_2dec_8902_5cc1]);
        let samples = [0, 1, 2].map(|key| f32::sample(key, 1.0).to_bits());
        assert_eq!(samples, [0x3fa2_afda, 0xbf1d_f85e, 0xbe68_703d]);
        assert_eq!([0, 1, 2].map(|key| f64::sample(key, 1.0) as f32), samples.map(f32::from_bits));
        assert_eq!(f32::sample(1, 0.5), 0.5 * f32::sample(1, 1.0));
    }

    #[test]
    fn samples_are_normal() {
        let draws: Vec<f64> = (0..100_000).map(|k| f64::sample(k, 2.0)).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.03 && (variance - 4.0).abs() < 0.1, "{mean} {variance}");
    }

    /// Against values of the normal distribution from tables. Kills: Φ for 1 − Φ, φ of another variance.
    #[test]
    fn the_normal_distribution_is_the_tables() {
        for (x, cdf, pdf) in [
            (0.0, 0.5, 0.398_942_280_401_432_7),
            (1.0, 0.841_344_746_068_542_9, 0.241_970_724_519_143_37),
            (-2.0, 0.022_750_131_948_179_2, 0.053_990_966_513_188_06),
        ] {
            assert!((f64::normal_cdf(x) - cdf).abs() < 1e-15 && (f64::normal_pdf(x) - pdf).abs() < 1e-15);
            let x = x as f32;
            assert!((f64::from(x.normal_cdf()) - cdf).abs() < 1e-7);
            assert!((f64::from(x.normal_pdf()) - pdf).abs() < 1e-7);
        }
        assert_eq!((2.0f32.step(), 0.0f32.step(), (-1.0f32).step()), (1.0, 0.0, 0.0));
    }

    /// Kills: a wrong coefficient, a tail that is cut off, NaN turned into a number.
    #[test]
    fn normal_f32_equals_the_error_function_to_two_in_ten_million() {
        for i in -1300..1300 {
            let x = i as f32 / 100.0 + 0.003;
            let (ours, truth) = (f64::from(normal_f32(x)), normal_f64(f64::from(x)));
            assert!((ours - truth).abs() <= 2e-7, "{x}: {ours} {truth}");
            let tail = f64::from(x * x).max(2.0) * 2e-7; // the square's rounding is the exponential's error
            assert!((ours / truth - 1.0).abs() < tail, "{x}: {ours} {truth}");
        }
        let ends = [f32::NEG_INFINITY, -20.0, 0.0, 20.0, f32::INFINITY].map(normal_f32);
        assert_eq!((ends, normal_f32(f32::NAN).is_nan()), ([0.0, 0.0, 0.5, 1.0, 1.0], true));
    }

    /// Kills: a wrong coefficient, the series where it does not hold, a NaN that is lost.
    #[test]
    fn tanh_f32_equals_tanh_to_four_ulp() {
        for i in -40_000..=40_000 {
            let x = i as f32 / 2000.0;
            let (ours, truth) = (f64::from(tanh_f32(x)), f64::from(x).tanh());
            assert!(
                (ours - truth).abs() <= 4.0 * f64::from(f32::EPSILON) * truth.abs(),
                "{x}: {ours} {truth}"
            );
        }
        assert!(tanh_f32(f32::NAN).is_nan() && [1e30, -1e30].map(tanh_f32) == [1.0, -1.0]);
    }

    /// `GeLU`'s tanh form, written with a sigmoid. Kills: a wrong constant.
    #[test]
    fn gelu_constants_give_the_tanh_form() {
        let (a, b) = f64::gelu_constants();
        for x in [-3.0, -0.7, 0.3, 2.0f64] {
            let tanh =
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
            assert!((x * (a * (x + b * x * x * x)).sigmoid() - tanh).abs() < 1e-15);
        }
    }

    /// Kills: zeros that differ by their sign, NaN that is chosen or that comes first because of its sign.
    #[test]
    fn floats_are_ordered_by_value_and_nan_is_last_to_be_chosen() {
        let rising = [f32::NAN, f32::NEG_INF, -1.5, 0.0, 2.0, f32::INFINITY];
        for (i, x) in rising.into_iter().enumerate() {
            for (j, y) in rising.into_iter().enumerate() {
                assert_eq!(x.order(y), i.cmp(&j), "{x} {y}");
                assert_eq!(crate::Bf16::narrow(x).order(crate::Bf16::narrow(y)), i.cmp(&j), "{x} {y}");
                let [x, y] = [x, y].map(|x| crate::Dual::new(f64::from(x), 1.0 / f64::from(x)));
                assert_eq!(x.order(y), i.cmp(&j), "{x:?} {y:?}");
            }
        }
        assert_eq!(((-0.0f32).order(0.0), f64::NAN.order(-f64::NAN)), (Ordering::Equal, Ordering::Equal));
    }

    #[test]
    fn clip_factor_never_enlarges() {
        assert_eq!((f32::clip_factor(4.0, 1.0), f32::clip_factor(0.25, 1.0)), (0.5, 1.0));
        assert_eq!(f32::clip_factor(0.0, 1.0), 1.0);
    }

    #[test]
    fn adam_scale_adds_epsilon_outside_the_root() {
        assert_eq!(f64::adam_scale(4.0, 0.5), 0.4);
    }
}
