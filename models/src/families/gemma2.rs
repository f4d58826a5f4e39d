//! Gemma 2: norms before and after both parts, caps of scores and logits, windows in every other block.
//! Source: Gemma Team, "Gemma 2", §2, arXiv:2408.00118.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, Family, ShapeKeys};
use super::windows;
use crate::config::{ConfigKeys, KeyValue};
use layers::{FeedForward, Gate, NormPlaces, Shape};
use parallel::Result;
use serde_json::json;

/// Keys of the divisor of scores, and of the caps of scores and logits.
const KEYS: [&str; 3] = ["query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"];
/// Scores and logits without caps by default.
pub(super) const SCORES: ShapeKeys = ShapeKeys {
    read_keys: "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping",
    read: |keys, shape| scores(keys, shape, [None, None]),
    keys: score_keys,
};

/// Gemma 2. Files have gains less 1; the embedding is multiplied by the root of its width.
pub const GEMMA2: &dyn Family = &Decoder {
    parts: &[
        ShapeKeys {
            read_keys: "layer_types sliding_window sliding_window_size",
            read: |keys, shape| keys.windows(shape, (true, Some(4096)), |block| block % 2 == 0),
            keys: windows::listed_keys,
        },
        ShapeKeys { read: |keys, shape| scores(keys, shape, [Some(50.0), Some(30.0)]), ..SCORES },
    ],
    ..GEMMA
};

/// Settings of both Gemmas.
pub(super) const GEMMA: Decoder = Decoder {
    fixed: "mlp_bias=false use_bidirectional_attention=false",
    defaults: Defaults {
        vocabulary: Some(256_000),
        queries: Some(8),
        key_heads: Some(4),
        head_dim: Some(256),
        positions: 8192,
        ids: [Some(2), Some(1)],
        padding: Some(0),
        tied: true,
        ..DEFAULTS
    },
    usual: Shape {
        norms: NormPlaces::Both,
        feed_forward: FeedForward::Gated(Gate::GeluTanh),
        ..Shape::LLAMA
    },
    bias_keys: &[ATTENTION_BIAS],
    plus_one: true,
    ..Decoder::of("gemma2", "Gemma2ForCausalLM")
};

/// Reads the divisor of scores, and the caps of scores and logits; a missing cap is the default, null none.
/// The factor of the embedding has no key.
fn scores(keys: &ConfigKeys<'_>, shape: &mut Shape, defaults: [Option<f64>; 2]) -> Result<()> {
    shape.embedding_root = Some(shape.width);
    let [root, cap, logits] = KEYS;
    let divisor = keys.size(root, Some(256))?;
    shape.scores.divisor = Some(divisor).filter(|divisor| *divisor != shape.heads.dim);
    let read = |key, default| if keys.map.contains_key(key) { keys.positive(key) } else { Ok(default) };
    shape.scores.cap = read(cap, defaults[0])?;
    shape.logit_cap = read(logits, defaults[1])?;
    Ok(())
}
/// Returns the keys of these.
fn score_keys(shape: &Shape) -> Vec<KeyValue> {
    let divisor = shape.scores.divisor.unwrap_or(shape.heads.dim);
    let values = [json!(divisor), json!(shape.scores.cap), json!(shape.logit_cap)];
    KEYS.into_iter().zip(values).collect()
}
