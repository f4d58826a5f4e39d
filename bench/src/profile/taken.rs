//! Of which steps of a run a profile is taken.

/// Steps of a run whose profile is not taken: they also take the memory.
pub const WARM: usize = 2;
/// Steps whose profiles are taken, at most: they are kept until the run has ended.
pub const MOST: usize = 100;

/// Whether a profile is taken of this step of a run, the first being 0.
#[must_use]
pub fn is_taken(step: usize) -> bool {
    (WARM..WARM + MOST).contains(&step)
}
