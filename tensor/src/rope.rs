//! Rotary embedding: how far a feature pair turns per position, and scaling to longer contexts. A model and
//! its oracle both call [`Scalar::rotary`](crate::Scalar::rotary), which reads these frequencies.
use crate::mix;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;
use std::ops::Deref;
use std::sync::Mutex;

/// Frequencies of a rotary embedding.
///
/// Source: Su et al., "RoFormer", §3.2, arXiv:2104.09864.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base: pair `i` of `d` features turns by `base^(−2i/d)` per position, before scaling.
    pub base: f64,
    /// Scaling of these frequencies.
    pub scaling: Scaling,
}

/// Scaling of frequencies, so that a model reads more positions than it was first trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// No scaling.
    None,
    /// All frequencies are divided by a factor. Source: Chen et al., "Position interpolation",
    /// arXiv:2306.15595.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Slow pairs are divided, fast ones kept, those between interpolated. Source: Llama 3.1's `rope_type`
    /// "llama3".
    Llama3 {
        /// Divisor of slow pairs.
        factor: f64,
        /// A pair that turns fewer times than this in the original context is slow.
        low: f64,
        /// A pair that turns more often than this is fast.
        high: f64,
        /// Positions of the original context.
        original: f64,
    },
    /// Slow pairs are divided, fast ones kept, those between interpolated by their index; the rotation also
    /// multiplies by a magnitude. Source: Peng et al., "`YaRN`", §3.2 to 3.4, arXiv:2309.00071.
    Yarn {
        /// Divisor of slow pairs.
        factor: f64,
        /// Positions of the original context.
        original: f64,
        /// A pair that turns more often than this in the original context is fast.
        fast: f64,
        /// A pair that turns fewer times than this is slow.
        slow: f64,
        /// Factor of rotated queries and keys.
        magnitude: f64,
        /// True if the indices between which pairs are interpolated are rounded, to both sides.
        truncate: bool,
    },
    /// Each pair is divided by a factor of its own, from one of two lists; the rotation also multiplies by a
    /// magnitude. Source: Ding et al., "`LongRoPE`", §3.3, arXiv:2402.13753.
    Long {
        /// Divisors where texts reach up to the original context.
        short: PairFactors,
        /// Divisors where they reach further.
        long: PairFactors,
        /// Positions of the original context.
        original: f64,
        /// Factor of rotated queries and keys.
        magnitude: f64,
        /// Positions that texts reach: [`Rope::reaching`].
        reach: f64,
    },
    /// The base grows with the positions beyond the original context. Source: `transformers`' `rope_type`
    /// "dynamic"; emozilla, "Dynamically scaled `RoPE`", 2023.
    Dynamic {
        /// Factor of the positions.
        factor: f64,
        /// Positions of the original context.
        original: f64,
        /// Positions that texts reach: [`Rope::reaching`].
        reach: f64,
    },
}

/// Divisors of feature pairs, in order. Equal lists are one, which is kept until the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<f64>")]
pub struct PairFactors(&'static [f64]);

impl From<Vec<f64>> for PairFactors {
    fn from(list: Vec<f64>) -> Self {
        static KEPT: Mutex<Vec<&[f64]>> = Mutex::new(Vec::new());
        let mut kept = KEPT.lock().expect("no list is half kept");
        let known = kept.iter().copied().find(|known| *known == list);
        Self(known.unwrap_or_else(|| {
            kept.push(list.leak());
            kept.last().expect("just kept")
        }))
    }
}

impl Deref for PairFactors {
    type Target = [f64];
    fn deref(&self) -> &[f64] {
        self.0
    }
}

impl From<f64> for Rope {
    /// Creates this base, without scaling.
    fn from(base: f64) -> Self {
        Self { base, scaling: Scaling::None }
    }
}

impl Rope {
    /// Returns the frequencies for texts that reach this number of positions. All texts of a run have the
    /// same ones, so that a text does not depend on the texts beside it.
    #[must_use]
    pub fn reaching(mut self, positions: usize) -> Self {
        if let Scaling::Long { reach, .. } | Scaling::Dynamic { reach, .. } = &mut self.scaling {
            *reach = positions as f64;
        }
        self
    }
    /// Radians that pair `i` of `d` features turns by from one position to the next.
    pub fn frequency(&self, i: usize, d: usize) -> f64 {
        let plain = self.base.powf(-2.0 * i as f64 / d as f64);
        match self.scaling {
            Scaling::None => plain,
            Scaling::Linear { factor } => plain / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let fast = ((original * plain / TAU - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - fast) * plain / factor + fast * plain
            }
            Scaling::Yarn { factor, original, fast, slow, truncate, .. } => {
                let index = |turns: f64| d as f64 * (original / (turns * TAU)).ln() / (2.0 * self.base.ln());
                let [low, high] = [index(fast), index(slow)];
                let [low, high] = if truncate { [low.floor(), high.ceil()] } else { [low, high] };
                let [low, high] = [low.max(0.0), high.min(d as f64 - 1.0)];
                let width = if low == high { 0.001 } else { high - low };
                let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
                slow * plain / factor + (1.0 - slow) * plain
            }
            Scaling::Long { short, long, original, reach, .. } => {
                let list = if reach > original { long } else { short };
                plain / list.get(i).copied().unwrap_or(1.0)
            }
            Scaling::Dynamic { factor, original, reach } => {
                let grown = factor * reach.max(original) / original - (factor - 1.0);
                plain * grown.powf(-2.0 * i as f64 / (d as f64 - 2.0).max(1.0))
            }
        }
    }
    /// Factor of the cosines and sines.
    pub fn magnitude(&self) -> f64 {
        if let Scaling::Yarn { magnitude, .. } | Scaling::Long { magnitude, .. } = self.scaling {
            magnitude
        } else {
            1.0
        }
    }
    /// Hash of all fields.
    pub(crate) fn hash(&self) -> u64 {
        let (kind, numbers) = match self.scaling {
            Scaling::None => return self.base.to_bits(),
            Scaling::Linear { factor } => (1, vec![factor, 0.0, 0.0, 0.0]),
            Scaling::Llama3 { factor, low, high, original } => (2, vec![factor, low, high, original]),
            Scaling::Yarn { factor, original, fast, slow, magnitude, truncate } => {
                (3, vec![factor, original, fast, slow, magnitude, f64::from(truncate)])
            }
            Scaling::Long { short, long, original, magnitude, reach } => {
                (4, [if reach > original { &*long } else { &*short }, &[magnitude]].concat())
            }
            Scaling::Dynamic { factor, original, reach } => (5, vec![factor, original, reach.max(original)]),
        };
        numbers.iter().fold(mix(self.base.to_bits() ^ kind), |hash, x| mix(hash ^ x.to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scalar;

    /// The three regimes of Llama 3.1's own settings, against numbers worked out by hand.
    /// Kills: fast and slow exchanged, a mixture of wavelengths for one of frequencies, a factor forgotten, a
    /// range of indices that is rounded to one side or not at all, a magnitude of cosines alone.
    #[test]
    fn scaling_slows_what_turns_slowly() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let (plain, scaled) = (Rope::from(500_000.0), Rope { base: 500_000.0, scaling });
        assert_eq!(scaled.frequency(0, 128), 1.0, "fast");
        assert_eq!(scaled.frequency(63, 128), plain.frequency(63, 128) / 8.0, "slow");
        let (between, turns) = (plain.frequency(32, 128), 8192.0 / 500_000f64.sqrt() / TAU);
        let fast = (turns - 1.0) / 3.0;
        assert!((0.1..0.9).contains(&fast), "{fast} lies between");
        let wanted = between * (fast + (1.0 - fast) / 8.0);
        assert!((scaled.frequency(32, 128) / wanted - 1.0).abs() < 1e-14);
        let linear = Rope { base: 100.0, scaling: Scaling::Linear { factor: 2.5 } };
        assert_eq!(linear.frequency(1, 4), 0.1 / 2.5);
        let yarn = |base, magnitude, truncate| {
            let scaling =
                Scaling::Yarn { factor: 4.0, original: 32768.0, fast: 32.0, slow: 1.0, magnitude, truncate };
            Rope { base, scaling }
        };
        // by the formula of transformers 5.24, computed outside of the project
        let [whole, exact] = [true, false].map(|truncate| yarn(1e6, 1.0, truncate));
        for (rope, i, wanted) in [
            (whole, 0, 1.0),
            (whole, 20, 1.333_521_432_163_324e-2),
            (whole, 30, 1.064_360_981_247_001_7e-3),
            (whole, 35, 2.462_584_069_089_387e-4),
            (whole, 63, 3.102_344_401_879_299e-7),
            (exact, 30, 1.079_237_741_676_553_8e-3),
            (exact, 35, 2.445_188_879_564_168_3e-4),
        ] {
            let seen = rope.frequency(i, 128);
            assert!((seen / wanted - 1.0).abs() < 1e-12, "{i}: {seen}");
        }
        let dynamic =
            Rope { base: 1e4, scaling: Scaling::Dynamic { factor: 4.0, original: 2048.0, reach: 0.0 } };
        let [short, long] = [[1.0, 1.25, 1.5, 2.0], [1.0, 2.5, 8.0, 40.0]].map(|list| list.to_vec().into());
        let scaling = Scaling::Long { short, long, original: 4096.0, magnitude: 1.25, reach: 4096.0 };
        let of_lists = Rope { base: 1e4, scaling };
        // by the formulas of transformers 5.24, computed outside of the project
        for (rope, reach, i, wanted) in [
            (dynamic, 2048, 2, 1e-2),
            (dynamic, 5000, 0, 1.0),
            (dynamic, 5000, 2, 2.795_512_156_018_523_6e-3),
            (dynamic, 5000, 3, 1.478_060_046_189_376_7e-4),
            (of_lists, 4096, 2, 1e-2 / 1.5),
            (of_lists, 4097, 2, 1e-2 / 8.0),
            (of_lists, 4097, 3, 1e-3 / 40.0),
        ] {
            let seen = rope.reaching(reach).frequency(i, 8);
            assert!((seen / wanted - 1.0).abs() < 1e-12, "{i} of {reach}: {seen:e}");
        }
        assert_eq!(of_lists.magnitude(), 1.25);
        let turned = f64::rotary(3, 1, 8, &yarn(1e6, 1.5, true));
        let once = f64::rotary(3, 1, 8, &whole);
        assert_eq!([turned.0, turned.1], [1.5 * once.0, 1.5 * once.1]);
        let hashes = [
            plain.hash(),
            scaled.hash(),
            linear.hash(),
            Rope::from(100.0).hash(),
            whole.hash(),
            exact.hash(),
            dynamic.hash(),
            dynamic.reaching(2049).hash(),
            of_lists.hash(),
            of_lists.reaching(4097).hash(),
        ];
        assert!((0..hashes.len()).all(|i| !hashes[..i].contains(&hashes[i])), "{hashes:?}");
    }
}
