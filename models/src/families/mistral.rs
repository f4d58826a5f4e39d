//! Mistral: Llama with a window in every block. Source: Jiang et al., arXiv:2310.06825.
use super::decoder::{DEFAULTS, Decoder, Defaults, Family, windows};
use super::mixtral::MIXTRAL;

/// Mistral.
pub const MISTRAL: &dyn Family = &Decoder {
    fixed: "attention_bias=false mlp_bias=false",
    defaults: Defaults { key_heads: Some(8), positions: 131_072, ids: [Some(1), Some(2)], ..DEFAULTS },
    parts: &[windows::EVERY_BLOCK],
    upcycled: Some(MIXTRAL),
    ..Decoder::of("mistral", "MistralForCausalLM")
};
