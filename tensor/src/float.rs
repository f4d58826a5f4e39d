//! Floats: the numbers that give the result, at speed.
use crate::scalar::{Scalar, mix};

/// A number with a size: floats. Reports (losses, probabilities, times) need one; layers do not.
pub trait Real: Scalar + PartialOrd {
    /// The value, rounded to nothing.
    fn to_f64(self) -> f64;
}

/// A standard normal draw by Box and Muller from two hashes of `key`.
fn normal(key: u64) -> f64 {
    let uniform = |k: u64| ((mix(k) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (-2.0 * uniform(key ^ 0x55).ln()).sqrt() * (std::f64::consts::TAU * uniform(mix(key) ^ 0xAA)).cos()
}

macro_rules! float {
    ($t:ident, $exp:path) => {
        impl Scalar for $t {
            const NAME: &'static str = stringify!($t);
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const NEG_INF: $t = <$t>::NEG_INFINITY;
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn inv(self) -> $t {
                1.0 / self
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
            fn rsqrt(self) -> $t {
                1.0 / self.sqrt()
            }
            fn rotary(position: usize, i: usize, d: usize, base: f64) -> ($t, $t) {
                let (sin, cos) = (position as f64 * base.powf(-2.0 * i as f64 / d as f64)).sin_cos();
                (cos as $t, sin as $t)
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
float!(f32, exp_f32);
float!(f64, f64::exp);

/// e^x to 1 ulp or so, without branches or calls, so that loops over it vectorise.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; the polynomial for e^r is that of the Cephes library (Moshier, 1989).
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer held in the low bits
    let c = if x > 88.37 { 88.37 } else { x }; // not `min`, which would make NaN a number
    let t = c * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = c - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = (p * r * r + r + 1.0) * f32::from_bits(t.to_bits().wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y }
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

    #[test]
    fn samples_are_normal() {
        let draws: Vec<f64> = (0..100_000).map(|k| f64::sample(k, 2.0)).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.03 && (variance - 4.0).abs() < 0.1, "{mean} {variance}");
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
