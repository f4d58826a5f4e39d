//! Gemma 3, its text model: Gemma 2 with norms of heads in place of caps, five blocks with a window before
//! each block without one, and frequencies of their own in both. Source: Gemma Team, "Gemma 3 technical
//! report", §2, arXiv:2503.19786.
use super::decoder::{Decoder, Defaults, Family, ShapeKeys};
use super::gemma2::{GEMMA, SCORES};
use super::windows;
use layers::Shape;

/// Gemma 3, its text model.
pub const GEMMA3: &dyn Family = &Decoder {
    defaults: Defaults { vocabulary: Some(262_208), positions: 131_072, base: 1e6, ..GEMMA.defaults },
    usual: Shape { head_norm: true, ..GEMMA.usual },
    local_base: Some(1e4),
    parts: &[
        ShapeKeys {
            read_keys: "layer_types rope_local_base_freq sliding_window sliding_window_pattern",
            read: |keys, shape| {
                let interval = keys.size("sliding_window_pattern", Some(6))?;
                keys.windows(shape, (true, Some(4096)), |block| !(block + 1).is_multiple_of(interval))
            },
            keys: windows::listed_keys,
        },
        SCORES,
    ],
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    ..GEMMA
};
