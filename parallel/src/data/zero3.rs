//! `ZeRO`, stage 3, `dp=N:zero3`: every rank has its shard of value, gradient and optimizer state. A bucket
//! (the embedding, a block, the head) is gathered before each use, while the bucket before it is in use, and
//! freed after it.
//!
//! ```text
//! W    = W_d          all-gather, before each use: forward, and backward
//! dW_d = Σ_d dW_d     reduce-scatter, after the backward of each microbatch
//! W_d  = update       moments of its shard alone
//! ```
//!
//! Source: Rajbhandari et al., "`ZeRO`", §5.3, arXiv:1910.02054; Zhao et al., "FSDP", §3, arXiv:2304.11277.
//! Neighbours: [`zero2`](super::zero2), [`tile`](super::tile). Chapter: `ZeRO`.
use super::state_split::{SHARDED, StateSplit};
use layers::StrategyInfo;
use ops::{AtRest, ShardingStrategy};

/// `ZeRO`, stage 3.
pub static ZERO3: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "ZeRO, stage 3",
        word: "zero3",
        paper: "Rajbhandari et al., arXiv:1910.02054",
        hints: &[
            ("texts:", "values are gathered before a bucket is used, in the order of its matrices"),
            (
                "gradient of",
                "each microbatch's sum is added to the shard: no microbatch replaces the one before it",
            ),
            ("", "a gathered value is valid for one step: after the update it is gathered again"),
        ],
        ..SHARDED
    },
    change: |rests, subgroup| ShardingStrategy {
        value: AtRest::Shard,
        gradient: AtRest::Shard,
        state: AtRest::Shard,
        subgroup,
        ..rests
    },
};
