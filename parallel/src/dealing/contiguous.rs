//! Contiguous tokens, `cp=N:contiguous`: rank `r` has the `r`th of N nearly equal pieces of every sequence.
//! Under the causal mask later ranks do more work, since their queries see more keys.
//!
//! Source: Li et al., "Sequence parallelism", §3.2, arXiv:2105.13120. Chapter: context parallelism.
use super::dealt::{DEALT, Dealing};
use layers::{StrategyInfo, Tries};
use ops::contiguous;

/// Contiguous tokens.
pub static CONTIGUOUS: Dealing = Dealing {
    about: StrategyInfo {
        name: "context parallelism with contiguous tokens",
        word: "contiguous",
        paper: "Li et al., arXiv:2105.13120",
        tries: Tries::Never,
        ..DEALT
    },
    stretches: contiguous,
};
