//! Llama: RMS norms, rotary positions, SwiGLU. Source: Touvron et al., arXiv:2302.13971; Llama 3,
//! arXiv:2407.21783.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, Family, MLP_BIAS};
use super::mixtral::MIXTRAL;

/// Llama.
pub const LLAMA: &dyn Family = &Decoder {
    fixed: "is_llama_config=true sliding_window=null use_sliding_window=false",
    defaults: Defaults { ids: [Some(1), Some(2)], ..DEFAULTS },
    bias_keys: &[ATTENTION_BIAS, MLP_BIAS],
    upcycled: Some(MIXTRAL),
    ..Decoder::of("llama", "LlamaForCausalLM")
};
