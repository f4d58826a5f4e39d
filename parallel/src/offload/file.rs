//! Offload to a file, `dp=N:zero1:offload-file`, or `offload-file` without data ranks: state lies in one file
//! a rank, which has no name and goes with the rank.
//!
//! ```text
//! dp=N:zero1    moments, masters      read and written once a step
//! dp=N:zero3    values, too           read before every use, written once a step
//! ```
//!
//! Source: Rajbhandari et al., "`ZeRO`-Infinity", §5, arXiv:2104.07857. Chapter: fitting a model.
//! Neighbour: [`zero3`](crate::data::zero3).
use super::store::Offload;
use layers::{Choice, StrategyInfo, Tries};
use ops::TokenShards;

/// Offload to a file.
pub static FILE: Offload = Offload {
    about: StrategyInfo {
        name: "offload to a file",
        word: "offload-file",
        tries: Tries::Never,
        paper: "Rajbhandari et al., arXiv:2104.07857",
        chapter: Some("fitting-a-model.md"),
        hints: &[("", "state that is loaded is that of the same parameter, after its last update")],
        ..StrategyInfo::of(Some(TokenShards::SEQUENCES), Choice::Offload)
    },
    pinned: false,
};
