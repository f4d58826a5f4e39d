//! Mixtral: Llama with experts in every block, and optionally a window. Source: Jiang et al.,
//! arXiv:2401.04088.
use super::aux_loss;
use super::decoder::{DEFAULTS, Decoder, Defaults, ExpertKeys, Family, windows};

/// Mixtral. A file without `sliding_window` means a model without a window.
pub const MIXTRAL: &dyn Family = &Decoder {
    fixed: "attention_bias=false mlp_bias=false router_jitter_noise=0",
    defaults: Defaults {
        key_heads: Some(8),
        positions: 131_072,
        ids: [Some(1), Some(2)],
        eps: 1e-5,
        base: 1e6,
        ..DEFAULTS
    },
    parts: &[windows::IF_GIVEN],
    experts: Some(ExpertKeys {
        count: &["num_local_experts"],
        hidden: "intermediate_size",
        names: ("block_sparse_moe", ["w1", "w3", "w2"]),
        ..aux_loss::EXPERTS
    }),
    ..Decoder::of("mixtral", "MixtralForCausalLM")
};
