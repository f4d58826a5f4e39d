//! Striped tokens, `cp=N:striped`: stripes of consecutive tokens go to the ranks in turn. A stripe is one
//! token; in a sequence of more than 64 tokens a rank it is longer, so that a rank has at most 64 stripes.
//! Under the causal mask every rank sees nearly as many keys, in every hop of a ring.
//!
//! Source: Brandon et al., "Striped attention", §3, arXiv:2311.09431. Chapter: context parallelism.
use super::dealt::{DEALT, Dealing};
use layers::{StrategyInfo, Tries};
use std::ops::Range;

/// Striped tokens.
pub static STRIPED: Dealing = Dealing {
    about: StrategyInfo {
        name: "context parallelism with striped tokens",
        word: "striped",
        paper: "Brandon et al., arXiv:2311.09431",
        tries: Tries::Never,
        ..DEALT
    },
    stretches,
};

/// Largest number of stripes of a sequence on one rank: each pair of stripes is one piece of work in a hop.
const MOST: usize = 64;

fn stretches(tokens: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
    let stripe = tokens.div_ceil(MOST * ranks).max(1);
    (rank * stripe..tokens).step_by(ranks * stripe).map(|start| start..tokens.min(start + stripe)).collect()
}
