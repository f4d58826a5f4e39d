//! Strategies of data ranks: where value, gradient and optimizer state of a parameter rest. What the words mean is obeyed by
//! whoever keeps parameters (`layers::param`).
use crate::strategies::list;
use layers::{About, Rests};

/// Where parameters rest.
#[derive(Debug)]
pub struct StateSplit {
    /// Its description.
    pub about: About,
    /// Where they rest; a number that a layout gives is the ranks of a block.
    pub rests: Rests,
}

list! { StateSplit:
    replicated::REPLICATED,
    zero1::ZERO1,
    zero2::ZERO2,
    zero3::ZERO3,
}
