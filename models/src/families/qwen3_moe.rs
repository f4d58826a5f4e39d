//! Qwen3 with experts, none of them shared, and without a window. Source: arXiv:2505.09388.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, ExpertKeys, Family, ShapeKeys, windows};
use super::qwen_experts::ROUTED;
use layers::Shape;

/// Qwen3 with experts. Version 5 of `transformers` writes their number under Mixtral's key, version 4 under
/// its own.
pub const QWEN3_MOE: &dyn Family = &Decoder {
    // Qwen3-Coder's files have these keys, and transformers ignores them.
    fixed: "mlp_bias=false qkv_bias=false shared_expert_intermediate_size=0 use_mrope=false use_qk_norm=true \
        use_sliding_window=false",
    defaults: Defaults { key_heads: Some(4), positions: 32_768, ..DEFAULTS },
    bias_keys: &[ATTENTION_BIAS],
    usual: Shape { head_norm: true, ..Shape::LLAMA },
    parts: &[ShapeKeys { read_keys: "max_window_layers sliding_window", ..windows::UNUSED }],
    experts: Some(ExpertKeys { count: &["num_experts", "num_local_experts"], ..ROUTED }),
    ..Decoder::of("qwen3_moe", "Qwen3MoeForCausalLM")
};
