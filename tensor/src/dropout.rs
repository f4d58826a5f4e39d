//! Dropout: a hash of what an element *is* (step, place in the model, sequence, position, feature), not of
//! its place in memory, decides whether the element is dropped. So a mask is the same on every replica and
//! consistent over all shards, and needs no memory: backward computes it again.
//!
//! Source: Srivastava et al., "Dropout", JMLR 15 (2014); scaled while training ("inverted").
use crate::{Scalar, mix};

/// Hashes a place in the model, in one step.
pub(crate) fn salt(seed: u64, step: usize, site: &str) -> u64 {
    site.bytes().fold(mix(mix(seed) ^ step as u64), |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Hashes an element at this place.
#[inline]
pub(crate) fn element(salt: u64, sequence: usize, position: usize, feature: u64) -> u64 {
    mix(mix(salt ^ mix((sequence as u64) << 32 | position as u64)) ^ feature)
}

/// Dropout at one place in the model, in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    rate: f64,
    salt: u64,
}

impl Dropout {
    /// Drops this fraction of the elements (`0 ≤ rate < 1`) at the place `site`, such as `blocks.0.mlp`.
    ///
    /// # Panics
    /// If the rate is out of range.
    #[must_use]
    pub fn new(rate: f64, seed: u64, step: usize, site: &str) -> Self {
        assert!((0.0..1.0).contains(&rate), "a dropout rate of {rate}; it must be 0 or more and below 1");
        Self { rate, salt: salt(seed, step, site) }
    }
    /// True if this element is kept. For attention's probabilities, `feature` is [`Dropout::pair`].
    #[inline]
    pub fn keeps(&self, sequence: usize, position: usize, feature: u64) -> bool {
        (element(self.salt, sequence, position, feature) >> 11) as f64 >= self.rate * (1u64 << 53) as f64
    }
    /// Returns the salt and the threshold for kernels on other devices: an element is kept if its hash
    /// without its last 11 bits is at least the threshold.
    #[must_use]
    pub fn terms(&self) -> [u64; 2] {
        [self.salt, (self.rate * (1u64 << 53) as f64).ceil() as u64]
    }
    /// Feature number of a probability: its query head in the whole model, and its key's position.
    #[inline]
    pub fn pair(head: usize, key: usize) -> u64 {
        (head as u64) << 32 | key as u64
    }
    /// Factor of the elements that are kept: 1/(1 − rate).
    pub fn scale<S: Scalar>(&self) -> S {
        (S::ONE - S::from_f64(self.rate)).inv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::F61;

    /// Kills: a rate that means what stays, a mask that ignores one of its coordinates.
    #[test]
    fn masks_take_their_share_and_differ_in_every_coordinate() {
        let mask = |rate, seed, step, site| {
            let dropout = Dropout::new(rate, seed, step, site);
            (0..20_000).map(|i| dropout.keeps(i / 1000, i / 50 % 20, (i % 50) as u64)).collect::<Vec<_>>()
        };
        let base = mask(0.2, 1, 2, "a");
        let kept = base.iter().filter(|keep| **keep).count();
        assert!((15_700..16_300).contains(&kept), "{kept} of 20000");
        for other in [mask(0.2, 2, 2, "a"), mask(0.2, 1, 3, "a"), mask(0.2, 1, 2, "b")] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!((13_000..14_200).contains(&same), "{same}: independent masks agree in 68 %");
        }
        let rows: std::collections::BTreeSet<&[bool]> = base.chunks(50).collect();
        assert_eq!(rows.len(), 400, "every row of every sequence has its own mask");
        assert!(mask(0.0, 1, 1, "a").iter().all(|keep| *keep));
        assert_ne!(Dropout::pair(1, 2), Dropout::pair(2, 1));
    }

    /// Masks computed outside of the project, also beyond what 16 bits count. Kills: another hash, with which
    /// a seed would drop others; coordinates that run into each other.
    #[test]
    fn a_seed_takes_away_what_it_always_took() {
        let dropout = Dropout::new(0.5, 3, 2, "blocks.0.mlp");
        let mask = |sequence, position, feature: fn(usize) -> u64| {
            let kept = (0..64).filter(|&i| dropout.keeps(sequence, position, feature(i)));
            kept.fold(0u64, |mask, i| mask | 1 << i)
        };
        let golden = [
            ((0, 0), 0xc299_9000_e4e4_c5d5),
            ((1, 0), 0xa55f_8d97_4911_a354),
            ((0, 1), 0x6dfe_075b_9489_55e5),
            ((0, 65_536), 0x8c19_8c77_7d08_81ab),
            ((1, 70_000), 0x8d5c_df4d_6ec5_ee4e),
            ((70_000, 1), 0x8fb6_4a3a_8fa0_8e26),
        ];
        for ((sequence, position), wanted) in golden {
            assert_eq!(
                mask(sequence, position, |i| i as u64),
                wanted,
                "sequence {sequence}, position {position}"
            );
        }
        assert_eq!(mask(0, 0, |head| Dropout::pair(head, 70_000 + head)), 0xacaa_c061_1a90_6c4f);
    }

    /// Rates that 53 bits have, and others. Kills: a bound that is rounded down, another hash than `keeps`
    /// has.
    #[test]
    fn the_terms_keep_what_is_kept() {
        for rate in [0.0, 0.5, 0.1, 1e-17, 1.0 - f64::EPSILON / 2.0] {
            let dropout = Dropout::new(rate, 3, 2, "a");
            let [salt, least] = dropout.terms();
            for i in 0..1000 {
                let keeps = element(salt, 1, 2, i) >> 11 >= least;
                assert_eq!(keeps, dropout.keeps(1, 2, i), "rate {rate}, element {i}");
            }
            assert!((least as f64 - rate * (1u64 << 53) as f64) < 1.0);
        }
    }

    #[test]
    fn what_stays_is_scaled_exactly() {
        let dropout = Dropout::new(0.25, 1, 1, "a");
        assert_eq!(dropout.scale::<f64>(), 4.0 / 3.0);
        assert_eq!(dropout.scale::<F61>() * F61::from_f64(0.75), F61::ONE);
    }

    #[test]
    #[should_panic(expected = "a dropout rate of 1;")]
    fn nothing_left_is_refused() {
        let _ = Dropout::new(1.0, 1, 1, "a");
    }
}
