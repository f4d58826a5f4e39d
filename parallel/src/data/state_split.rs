//! What a strategy of data ranks is.
use layers::{About, Rests};

/// Where parameters rest.
#[derive(Debug)]
pub struct StateSplit {
    /// Its description.
    pub about: About,
    /// What it changes of where parameters rest: all that a layout names are applied, in the list's order. A number that the
    /// layout gives is the ranks of a block.
    pub change: fn(Rests, Option<usize>) -> Rests,
}
