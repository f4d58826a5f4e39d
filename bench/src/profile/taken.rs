//! Steps of a run that are profiled.

/// First steps of a run, which are not profiled: they also allocate the memory.
pub const WARM: usize = 2;
/// The most steps that are profiled: their profiles are kept until the run ends.
pub const MOST: usize = 100;

/// Returns true if this step of a run is profiled; the first step is 0.
#[must_use]
pub fn is_taken(step: usize) -> bool {
    (WARM..WARM + MOST).contains(&step)
}
