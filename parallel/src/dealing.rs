//! Strategies that deal the tokens of a sequence over context ranks, `cp`.
use crate::strategies::lists::list;
use layers::{StrategyInfo, Stretches};

/// A way to deal the tokens of a sequence over context ranks.
#[derive(Debug)]
pub struct Dealing {
    /// Its description.
    pub about: StrategyInfo,
    /// Function from a rank to its tokens.
    pub stretches: Stretches,
}

list! { Dealing, |dealing| &dealing.about;
    contiguous::CONTIGUOUS,
}
