//! Strategies of context ranks, `cp`, which share the tokens of every sequence: how these are dealt, and how attention's
//! core meets the tokens of other ranks.
use crate::strategies::{builders, list};
use layers::{About, Stretches};

/// How the tokens of a sequence are dealt over context ranks.
#[derive(Debug)]
pub struct Dealing {
    /// Its description.
    pub about: About,
    /// Which tokens each rank has.
    pub stretches: Stretches,
}

list! { Dealing:
    contiguous::CONTIGUOUS,
}

builders! {
    gathered::Gathered,
}
