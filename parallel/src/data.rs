//! Strategies of data ranks: where value, gradient and optimizer state of a parameter rest. What the words mean is obeyed by
//! whoever keeps parameters (`layers::param`).
mod state_split;

pub use state_split::StateSplit;

use crate::strategies::lists::list;

list! { StateSplit, |split| &split.about;
    replicated::REPLICATED,
    zero1::ZERO1,
    zero2::ZERO2,
    zero3::ZERO3,
}
