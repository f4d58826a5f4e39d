//! Qwen3: Qwen2 without its biases, queries and keys normalised head by head. Source: arXiv:2505.09388.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, Family, windows};
use super::qwen3_moe::QWEN3_MOE;
use layers::Shape;

/// Qwen3.
pub const QWEN3: &dyn Family = &Decoder {
    fixed: "mlp_bias=false",
    defaults: Defaults { key_heads: Some(32), head_dim: Some(128), positions: 32_768, ..DEFAULTS },
    bias_keys: &[ATTENTION_BIAS],
    usual: Shape { head_norm: true, ..Shape::LLAMA },
    parts: &[windows::LATER_BLOCKS],
    upcycled: Some(QWEN3_MOE),
    ..Decoder::of("qwen3", "Qwen3ForCausalLM")
};
