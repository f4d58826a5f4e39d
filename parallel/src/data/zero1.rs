//! `ZeRO`, stage 1, `dp=N:zero1`: every rank has the whole value and the whole gradient, and the optimizer
//! state of its shard.
//!
//! ```text
//! dW_d = Σ_d dW_d     reduce-scatter, once a step: each rank has the sum of its shard
//! W_d  = update       moments of its shard alone
//! W    = W_d          all-gather: together the traffic of one all-reduce
//! ```
//!
//! Source: Rajbhandari et al., "`ZeRO`", §5.1, arXiv:1910.02054. Neighbour:
//! [`replicated`](super::replicated). Chapter: `ZeRO`.
use super::state_split::{SHARDED, StateSplit};
use layers::StrategyInfo;
use ops::{AtRest, ShardingStrategy};

/// `ZeRO`, stage 1.
pub static ZERO1: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "ZeRO, stage 1",
        word: "zero1",
        paper: "Rajbhandari et al., arXiv:1910.02054",
        hints: &[
            ("norm²", "the norm counts each shard once: a sum over data ranks of what each has"),
            ("gradient of", "a rank's shard of the summed gradient has the index of that data rank"),
            (
                "",
                "a rank updates only the values of its shard, and all ranks gather them before they are used",
            ),
        ],
        ..SHARDED
    },
    change: |rests, subgroup| ShardingStrategy { state: AtRest::Shard, subgroup, ..rests },
};
