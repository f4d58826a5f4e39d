//! Floats of 16 bits: for storage, not for arithmetic. Operators and functions compute in `f32` and round
//! each result to the nearest one, ties to even. Sums of many terms belong into
//! [`Scalar::Wide`](crate::Scalar).

/// Defines a float of 16 bits with so many of exponent, and its name in files, from its conversions from and
/// to `f32`.
macro_rules! narrow_float {
    ($(#[$doc:meta])* $name:ident $text:literal, exponent $exponent:literal;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(u16);

        impl $name {
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

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.widen().fmt(f)
            }
        }
        impl PartialEq for $name {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                self.widen() == other.widen()
            }
        }
        impl PartialOrd for $name {
            #[inline(always)]
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.widen().partial_cmp(&other.widen())
            }
        }
        operators! { [] $name,
            Add add |a, b| a.of(b, f32::add);
            Sub sub |a, b| a.of(b, f32::sub);
            Mul mul |a, b| a.of(b, f32::mul);
            Neg neg |a| Self(a.0 ^ 0x8000);
        }

        impl Scalar for $name {
            const NAME: &'static str = $text;
            const SMALL_RANGE: bool = $exponent < 8;
            const ZERO: Self = Self(0);
            const ONE: Self = Self(((1 << ($exponent - 1)) - 1) << (15 - $exponent));
            const NEG_INF: Self = Self(0xFFFF >> (15 - $exponent) << (15 - $exponent));
            type Wide = f32;
            type Priced = crate::Bf16;
            /// Rounds once: rounding to 32 bits first would move a value beside a midpoint onto the midpoint.
            fn from_f64(x: f64) -> Self {
                Self(crate::rounding::bits::<$exponent>(x))
            }
            /// Computes the power of the wide value and rounds once.
            fn pow(self, n: usize) -> Self {
                self.by(|x| Scalar::pow(x, n))
            }
            narrow_float! { @by_f32 inv sigmoid tanh normal_cdf normal_pdf step sign rsqrt }
            fn is_finite(self) -> bool {
                self.widen().is_finite()
            }
            #[inline(always)]
            fn order(self, other: Self) -> std::cmp::Ordering {
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
            /// Computes from the count itself, which 16 bits may be unable to represent.
            fn inv_sqrt(n: usize) -> Self {
                Self::narrow(f32::inv_sqrt(n))
            }
            fn rotary(position: usize, i: usize, d: usize, rope: &crate::Rope) -> (Self, Self) {
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

        impl crate::Real for $name {
            fn to_f64(self) -> f64 {
                f64::from(self.widen())
            }
        }
    };
    (@by_f32 $($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self) -> Self {
            self.by(f32::$name)
        }
    )*};
}

#[cfg(test)]
mod tests {
    use crate::{Bf16, F16, Real, Scalar, mix, rounding};

    /// A float of 16 bits, in tests.
    trait Sixteen: Real<Wide = f32> {
        const EXPONENT: u32;
        fn of(bits: u16) -> Self;
        fn bits(self) -> u16;
        fn all() -> impl Iterator<Item = Self> {
            (0..=u16::MAX).map(Self::of)
        }
    }
    macro_rules! sixteen {
        ($($name:ident $exponent:literal),*) => {$(
            impl Sixteen for $name {
                const EXPONENT: u32 = $exponent;
                fn of(bits: u16) -> Self {
                    Self::from_bits(bits)
                }
                fn bits(self) -> u16 {
                    self.to_bits()
                }
            }
        )*};
    }
    sixteen!(Bf16 8, F16 5);

    /// Kills: a sign, a subnormal or an infinity that is lost, NaN that becomes a number.
    #[test]
    fn every_number_survives_being_wide() {
        fn check<S: Sixteen>() {
            for x in S::all() {
                let back = S::narrow(x.widen());
                let quiet = if x.widen().is_nan() { 1 << (14 - S::EXPONENT) } else { 0 };
                assert_eq!(
                    (back.bits(), back.widen().is_nan()),
                    (x.bits() | quiet, quiet > 0),
                    "{:#x}",
                    x.bits()
                );
                assert_eq!(S::from_f64(x.to_f64()) == x, quiet == 0);
            }
            // only its lower half makes it NaN
            assert!(S::narrow(f32::from_bits(0x7F80_0001)).widen().is_nan());
            assert!(S::narrow(f32::from_bits(u32::MAX)).widen().is_nan()); // rounding would carry out of it
        }
        check::<Bf16>();
        check::<F16>();
    }

    /// The nearest of its two neighbours, found by their distances; the even one of two as near.
    fn slowly<S: Sixteen>(x: f32) -> S {
        let infinite = 0x7FFF >> (15 - S::EXPONENT) << (15 - S::EXPONENT);
        let limit = 2f64.powi(1 << (S::EXPONENT - 1)); // infinity's place: where the next number would be
        let value = |bits: u16| if bits == infinite { limit } else { S::of(bits).to_f64() };
        let size = f64::from(x).abs();
        let (mut low, mut high) = (0, infinite);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if value(middle) <= size { low = middle } else { high = middle - 1 }
        }
        let [below, above] = [low, (low + 1).min(infinite)].map(|bits| (size - value(bits)).abs());
        let nearest =
            if below < above || (below == above && low % 2 == 0) { low } else { (low + 1).min(infinite) };
        S::of(nearest | (x.to_bits() >> 16) as u16 & 0x8000)
    }

    /// Every value, the midpoint to the next one, the values beside both, and drawn ones. Kills: rounding
    /// towards zero, ties away from zero, an overflow that stays finite, a subnormal that is 0.
    #[test]
    fn rounding_equals_the_slow_definition() {
        fn check<S: Sixteen>() {
            let of = |x: S| x.widen().to_bits();
            let near = S::all().filter(|x| x.widen().is_finite()).flat_map(|x| {
                let middle = f32::midpoint(x.widen(), S::of(x.bits() + 1).widen());
                let middle = if middle.is_finite() { middle } else { x.widen() };
                [of(x), middle.to_bits()].into_iter().flat_map(|at| [at.saturating_sub(1), at, at + 1])
            });
            let drawn = (0..200_000u64).map(|i| mix(i) as u32);
            let small = drawn.clone().map(|bits| bits >> 4 | 0x3000_0000); // of the size of weights
            for x in near.chain(drawn).chain(small).map(f32::from_bits).filter(|x| x.is_finite()) {
                let seen = S::narrow(x);
                assert_eq!(seen.bits(), slowly::<S>(x).bits(), "{x:e} {:#x}", x.to_bits());
                assert_eq!(seen.bits(), rounding_of::<S>(f64::from(x)), "{x:e} from 64 bits");
            }
            let ends = [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY].map(|x| S::narrow(x).bits());
            let negative = S::NEG_INF.bits();
            assert_eq!(ends, [negative ^ 0x8000, negative, negative ^ 0x8000, negative]);
        }
        fn rounding_of<S: Sixteen>(x: f64) -> u16 {
            if S::EXPONENT == 8 { rounding::bits::<8>(x) } else { rounding::bits::<5>(x) }
        }
        check::<Bf16>();
        check::<F16>();
    }

    /// Kills: a constant that is rounded to 32 bits first.
    #[test]
    fn constants_round_once() {
        let beside_the_middle = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(Bf16::from_f64(beside_the_middle).to_bits(), 0x3F81);
        assert_eq!(Bf16::narrow(beside_the_middle as f32).to_bits(), 0x3F80);
        assert_eq!(F16::from_f64(1.0 + 2f64.powi(-11) + 2f64.powi(-40)).to_bits(), 0x3C01);
        assert_eq!(Bf16::from_usize(257).to_bits(), Bf16::from_usize(256).to_bits());
        assert_eq!(Bf16::inv_sqrt(16_777_217).widen(), 2f32.powi(-12));
    }

    /// Kills: a function of another's, an argument that is rounded once more, comparisons by bits.
    #[test]
    fn results_are_those_of_f32_rounded() {
        fn check<S: Sixteen>() {
            type Of<S> = fn(S, S) -> S;
            let [x, y] = [1.3, -0.7].map(S::from_f64);
            let (wide_x, wide_y) = (x.widen(), y.widen());
            macro_rules! both {
                ($($of:expr),*) => { [$(($of as Of<S>, $of as Of<f32>)),*] };
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
                assert_eq!(narrow(x, y).bits(), S::narrow(wide(wide_x, wide_y)).bits(), "function {i}");
            }
            let (zero, nan) = (S::ZERO, S::narrow(f32::NAN));
            assert!(zero == -zero && nan != nan && y < x && (nan < x) == (x < nan));
            assert!(S::NEG_INF.widen() == f32::NEG_INFINITY && S::ONE.widen() == 1.0);
            assert_eq!(S::exp_sub(S::NEG_INF, x), zero);
        }
        check::<Bf16>();
        check::<F16>();
        assert_eq!(format!("{:?}", Bf16::from_f64(-0.7)), "-0.69921875");
    }
}
