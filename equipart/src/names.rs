//! Canonical names ↔ Hugging Face names of a Llama model. Theirs are `[outputs, inputs]`; our fused matrices are
//! several of theirs side by side.
use layers::Shape;
use parallel::{Entry, Orientation};
use std::ops::Range;

/// Every tensor of a file in the Hugging Face layout, in the program order of our parameters.
pub fn entries(shape: &Shape) -> Vec<Entry> {
    let (d, head) = (shape.width, shape.heads.dim);
    let (q, kv) = (shape.heads.queries * head, shape.heads.keys * head);
    let mut all = vec![entry("model.embed_tokens", "embedding", shape.vocabulary, 0..d, Orientation::Same)];
    for i in 0..shape.blocks {
        let mut add = |their: &str, our: &str, rows: usize, columns: Range<usize>, orientation| {
            let (theirs, ours) = (format!("model.layers.{i}.{their}"), format!("blocks.{i}.{our}"));
            all.push(entry(&theirs, &ours, rows, columns, orientation));
        };
        let (f, linear, gain) = (shape.hidden, Orientation::Transposed, Orientation::Vector);
        add("input_layernorm", "norm1", 1, 0..d, gain);
        add("self_attn.q_proj", "attention.qkv", d, 0..q, linear);
        add("self_attn.k_proj", "attention.qkv", d, q..q + kv, linear);
        add("self_attn.v_proj", "attention.qkv", d, q + kv..q + 2 * kv, linear);
        add("self_attn.o_proj", "attention.out", q, 0..d, linear);
        add("post_attention_layernorm", "norm2", 1, 0..d, gain);
        add("mlp.gate_proj", "mlp.gate_up", d, 0..f, linear);
        add("mlp.up_proj", "mlp.gate_up", d, f..2 * f, linear);
        add("mlp.down_proj", "mlp.down", f, 0..d, linear);
    }
    all.push(entry("model.norm", "norm", 1, 0..d, Orientation::Vector));
    if !shape.tied {
        all.push(entry("lm_head", "head", d, 0..shape.vocabulary, Orientation::Transposed));
    }
    all
}

fn entry(theirs: &str, ours: &str, rows: usize, columns: Range<usize>, orientation: Orientation) -> Entry {
    Entry { name: format!("{theirs}.weight"), param: ours.into(), rows, columns, orientation }
}
