//! Sequence parallelism, `sp` beside `tp=N`: between the matrix products of a block each rank has its own
//! tokens, so norms, dropout and residuals are computed once, not on every rank, and their saved activations
//! are split.
//!
//! ```text
//! tp alone      Y = Σ_t …      all-reduce
//! tp with sp    Y_t = Σ_t …    reduce-scatter, and X = all-gather(X_t) before the next product
//! ```
//!
//! Layers are written once for both ([`Stream`](ops::Stream)); the built layers differ only in the
//! region.
//!
//! Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", §4.2.2,
//! arXiv:2205.05198. Chapter: sequence parallelism.
use comm::Axis;
use kernels::Kernels;
use layers::{Builder, Choice, Strategy, StrategyInfo};

/// Sequence parallelism over the tensor ranks.
pub struct SequenceParallel;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "sequence parallelism",
    word: "sp",
    paper: "Korthikanti et al., arXiv:2205.05198",
    chapter: Some("sequence-regions.md"),
    hints: &[
        (
            "gradient of",
            "a parameter applied to a rank's own tokens gets a partial gradient sum: placed `Partial`",
        ),
        ("norm²", "a gradient that is a partial sum is summed before it is squared, and counted once"),
        ("", "a sum is scattered over tokens, gathered before the next product; padding goes no further"),
    ],
    ..StrategyInfo::of(Some(Axis::Tp), Choice::Layers)
};

impl<D: Kernels> Strategy<D> for SequenceParallel {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn place<'a>(&self, at: Builder<'a, D>) -> Builder<'a, D> {
        at.in_regions()
    }
}
