//! Numbers of steps of a run that are profiled, and that are not.

/// First steps of a run, which are not profiled: they also allocate the memory.
pub const WARM: usize = 2;
/// The most steps that are profiled: their profiles are kept until the run ends.
pub const MOST: usize = 100;
