//! Noise while training: a hash of what an element *is*, as in [`Dropout`](crate::Dropout), draws the value
//! that is added to it. So the noise is the same on every replica and over all shards.
use crate::Scalar;
use crate::dropout::{element, salt};

/// Normal noise at one place in the model, in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    std: f64,
    salt: u64,
}

impl Noise {
    /// Creates noise of this standard deviation at the place `site`, such as `blocks.0.mlp.router`.
    #[must_use]
    pub fn new(std: f64, seed: u64, step: usize, site: &str) -> Self {
        Self { std, salt: salt(seed, step, site) }
    }
    /// Returns the standard deviation, and the hash of the place and the step, for kernels on other devices.
    #[must_use]
    pub fn parts(&self) -> (f64, u64) {
        (self.std, self.salt)
    }
    /// Returns the noise of an element: σ times a normal draw.
    #[inline]
    pub fn of<S: Scalar>(&self, sequence: usize, position: usize, feature: u64) -> S {
        S::from_f64(self.std) * S::sample(element(self.salt, sequence, position, feature), 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{F61, Key};

    /// Kills: a variance for a deviation, draws that ignore one of their coordinates, a deviation that the
    /// field does not see.
    #[test]
    fn noise_is_normal_and_differs_in_every_coordinate() {
        let draws = |std, seed, step, site| {
            let noise = Noise::new(std, seed, step, site);
            (0..20_000).map(|i| noise.of::<f64>(i / 1000, i / 50 % 20, i as u64 % 50)).collect::<Vec<_>>()
        };
        let base = draws(0.5, 1, 2, "a");
        let mean = |of: &dyn Fn(usize) -> f64| (0..base.len()).map(of).sum::<f64>() / 2e4;
        let (first, second) = (mean(&|i| base[i]), mean(&|i| base[i] * base[i]));
        assert!(first.abs() < 0.02 && (second - 0.25).abs() < 0.02, "{first} {second}");
        for other in [draws(0.5, 2, 2, "a"), draws(0.5, 1, 3, "a"), draws(0.5, 1, 2, "b")] {
            assert!(mean(&|i| base[i] * other[i]).abs() < 0.02);
        }
        let mut each = base.clone();
        each.sort_by(f64::total_cmp);
        each.dedup();
        assert_eq!(each.len(), base.len(), "every element its own");
        let _held = Key(3).enter();
        let of = |std| Noise::new(std, 1, 2, "a").of::<F61>(0, 1, 2);
        assert!(of(1.0) != of(2.0) && of(2.0) == of(1.0) + of(1.0));
    }
}
