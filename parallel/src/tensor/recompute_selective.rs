//! Selective recomputation, `recompute:selective`: the attention of a block keeps only its input, and its
//! products, rotation and core run again in backward; the feed-forward keeps what its backward needs.
//!
//! ```text
//! forward   Y = attention(X)        X is kept, `B·D` elements a block
//! backward  Q, K, V, P, O           again; then dX, dW of the attention
//! ```
//!
//! An attention keeps much for the operations that it takes: its projections, the core's output and sums. The
//! paper recomputes the core alone, since it assumes one that stores all scores.
//!
//! Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", §5,
//! arXiv:2205.05198. Neighbour: [`recompute`](super::recompute). Chapter: fitting a model.
use super::recompute::again;
use kernels::Kernels;
use layers::{Block, Choice, Strategy, StrategyInfo};

/// Recomputation of every attention.
pub struct RecomputeSelective;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "selective recomputation",
    word: "selective",
    paper: "Korthikanti et al., arXiv:2205.05198",
    chapter: Some("fitting-a-model.md"),
    hints: &[("", "an attention's second forward repeats the first: the same dropout and keys of the past")],
    ..StrategyInfo::of(None, Choice::Recompute)
};

impl<D: Kernels> Strategy<D> for RecomputeSelective {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn around_attention(&self, attention: Block<D>) -> Block<D> {
        again(attention)
    }
}
