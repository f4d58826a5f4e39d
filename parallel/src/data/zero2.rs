//! `ZeRO`, stage 2, `dp=N:zero2`: every rank has the whole value, and its shard of the gradient and of the
//! optimizer state.
//!
//! ```text
//! dW_d = Σ_d dW_d     reduce-scatter, after the backward of each microbatch
//! W_d  = update       moments of its shard alone
//! W    = W_d          all-gather, once a step
//! ```
//!
//! Source: Rajbhandari et al., "`ZeRO`", §5.2, arXiv:1910.02054. Neighbours: [`zero1`](super::zero1),
//! [`zero3`](super::zero3). Chapter: `ZeRO`.
use super::state_split::{SHARDED, StateSplit};
use layers::StrategyInfo;
use ops::{AtRest, ShardingStrategy};

/// `ZeRO`, stage 2.
pub static ZERO2: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "ZeRO, stage 2",
        word: "zero2",
        paper: "Rajbhandari et al., arXiv:1910.02054",
        hints: &[
            ("norm²", "the norm counts each shard once: a sum over data ranks of what each has"),
            (
                "gradient of",
                "each microbatch's sum is added to the shard: no microbatch replaces the one before it",
            ),
            (
                "",
                "a rank updates only the values of its shard, and all ranks gather them before they are used",
            ),
        ],
        ..SHARDED
    },
    change: |rests, subgroup| ShardingStrategy {
        gradient: AtRest::Shard,
        state: AtRest::Shard,
        subgroup,
        ..rests
    },
};
