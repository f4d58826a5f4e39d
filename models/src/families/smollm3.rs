//! `SmolLM3`: Llama whose every fourth block has no positions. Source: Hugging Face, "`SmolLM3`: smol,
//! multilingual, long-context reasoner", 2025; Yang et al., "Rope to Nope and Back Again", arXiv:2501.18795.
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, Family, MLP_BIAS, ShapeKeys, windows};
use serde_json::{Value, json};

/// `SmolLM3`. `no_rope_layers` has a 0 for each block without positions; by default, these are the blocks
/// that end an interval. Windows, where they are used, are in the same blocks.
pub const SMOLLM3: &dyn Family = &Decoder {
    defaults: Defaults {
        key_heads: Some(4),
        positions: 32_768,
        ids: [Some(128_000), Some(128_001)],
        base: 2e6,
        padding: Some(128_004),
        tied: true,
        ..DEFAULTS
    },
    bias_keys: &[ATTENTION_BIAS, MLP_BIAS],
    parts: &[ShapeKeys {
        read_keys: "layer_types max_window_layers no_rope_layer_interval no_rope_layers sliding_window \
            use_sliding_window",
        read: |keys, shape| {
            let blocks = shape.blocks;
            let interval = keys.size("no_rope_layer_interval", Some(4))?;
            let wanted = format!("a list of 0 and 1, {blocks} or more");
            let list = |value: &Value| {
                let list = value.as_array().filter(|list| list.len() >= blocks)?;
                list.iter().map(|one| one.as_u64().filter(|one| *one < 2)).collect::<Option<Vec<_>>>()
            };
            let listed = keys.read("no_rope_layers", &wanted, list)?;
            let plain = |block: usize| {
                listed.as_ref().map_or((block + 1).is_multiple_of(interval), |listed| listed[block] == 0)
            };
            shape.pattern.other_positions = keys.some_blocks(blocks, "no positions", plain)?;
            keys.windows(shape, (false, None), plain)
        },
        keys: |shape| {
            let rotary = |block| usize::from(shape.block(block).rope.is_some());
            let rotary: Vec<_> = (0..shape.blocks).map(rotary).collect();
            let used = ("use_sliding_window", json!(shape.window.is_some()));
            [vec![("no_rope_layers", json!(rotary)), used], windows::listed_keys(shape)].concat()
        },
    }],
    ..Decoder::of("smollm3", "SmolLM3ForCausalLM")
};
