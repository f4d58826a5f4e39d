//! How the tokens of a sequence are dealt over context ranks, `cp`.
use crate::strategies::lists::list;
use layers::{About, Stretches};

/// How the tokens of a sequence are dealt over context ranks.
#[derive(Debug)]
pub struct Dealing {
    /// Its description.
    pub about: About,
    /// Which tokens each rank has.
    pub stretches: Stretches,
}

list! { Dealing, |dealing| &dealing.about;
    contiguous::CONTIGUOUS,
}
