//! Strategies of data ranks: where value, gradient and optimizer state of a parameter rest. What the words mean is obeyed by
//! whoever keeps parameters (`layers::param`).
use crate::strategies::list;
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

list! { StateSplit, |split| &split.about;
    replicated::REPLICATED,
    zero1::ZERO1,
    zero2::ZERO2,
    zero3::ZERO3,
}
