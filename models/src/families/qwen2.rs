//! Qwen2: Llama with biases of queries, keys and values, and optionally a window in the later blocks. Source:
//! Yang et al., arXiv:2407.10671.
use super::decoder::{DEFAULTS, Decoder, Defaults, Family, QKV, windows};

/// Qwen2.
pub const QWEN2: &dyn Family = &Decoder {
    fixed: "mlp_bias=false use_mrope=false",
    defaults: Defaults { key_heads: Some(32), positions: 32_768, ..DEFAULTS },
    usual: QKV,
    parts: &[windows::LATER_BLOCKS],
    ..Decoder::of("qwen2", "Qwen2ForCausalLM")
};
