//! Offload to the host's memory, `dp=N:zero1:offload-host`, or `offload-host` without data ranks: state of a
//! GPU lies in pinned memory of the host, which the GPU copies directly, beside its kernels.
//!
//! Same state and moves as [`file`](mod@super::file). On the host as a device there is nothing to gain: the
//! state would stay in the same memory.
//!
//! Source: Ren et al., "`ZeRO`-Offload", §4, arXiv:2101.06840. Chapter: fitting a model.
use super::file;
use super::store::Offload;
use layers::{StrategyInfo, Tries};

/// Offload to the host's memory.
pub static HOST: Offload = Offload {
    about: StrategyInfo {
        name: "offload to the host",
        word: "offload-host",
        tries: Tries::Needed(&[]),
        paper: "Ren et al., arXiv:2101.06840",
        ..file::FILE.about
    },
    pinned: true,
};
