//! Phi-3: Llama whose files have queries, keys and values as one matrix, and gate and up as another. Source:
//! Abdin et al., "Phi-3 technical report", arXiv:2404.14219; Phi-4-mini, which rotates three quarters of each
//! head, arXiv:2503.01743.
use super::decoder::{DEFAULTS, Decoder, Defaults, Family, ShapeKeys, windows};
use super::rope::ORIGINAL;
use layers::Positions;
use serde_json::json;
use tensor::{Rope, Scaling};

/// Phi-3, and Phi-4.
pub const PHI3: &dyn Family = &Decoder {
    fixed: "attention_bias=false embd_pdrop=0 full_attn_mod=1 interpolate_factor=1 lm_head_bias=false \
        mlp_bias=false",
    defaults: Defaults {
        positions: 4096,
        ids: [Some(1), Some(32_000)],
        eps: 1e-5,
        padding: Some(32_000),
        ..DEFAULTS
    },
    partial: true,
    fused: true,
    parts: &[
        windows::IF_GIVEN,
        ShapeKeys {
            read_keys: "original_max_position_embeddings resid_pdrop",
            read: |keys, shape| {
                shape.dropout.residual = keys.rate("resid_pdrop", 0.0)?;
                Ok(())
            },
            keys: |shape| {
                let mut keys = vec![("resid_pdrop", json!(shape.dropout.residual))];
                if let Positions::Rotary(Rope { scaling: Scaling::Long { original, .. }, .. }) = shape.positions {
                    keys.push((ORIGINAL, json!(original as u64)));
                }
                keys
            },
        },
    ],
    ..Decoder::of("phi3", "Phi3ForCausalLM")
};
