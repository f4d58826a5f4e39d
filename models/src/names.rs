//! Canonical names ↔ Hugging Face names. Our fused matrices are several of theirs side by side; theirs of a linear
//! layer are `[outputs, inputs]`, but GPT-2's are `[inputs, outputs]`, as ours are, and it has its own fused.
//!
//! | ours | Llama, Mistral, Qwen | GPT-2 |
//! |---|---|---|
//! | `embedding`, `positions` | `model.embed_tokens`, none | `transformer.wte`, `transformer.wpe` |
//! | `blocks.0.norm1`, `.norm2` | `input_layernorm`, `post_attention_layernorm` of `model.layers.0` | `ln_1`, `ln_2` of `transformer.h.0` |
//! | `.attention.qkv`, `.attention.out` | `self_attn.{q,k,v}_proj`, `.o_proj` | `attn.c_attn`, `attn.c_proj` |
//! | `.attention.q_norm`, `.k_norm` | the same in `self_attn` | none |
//! | `.mlp.gate_up`, `.mlp.down` | `mlp.{gate,up}_proj`, `.down_proj` | none |
//! | `.mlp.up`, `.mlp.down` | none | `mlp.c_fc`, `mlp.c_proj` |
//! | `norm`, `head` | `model.norm`, `lm_head` | `transformer.ln_f`, `lm_head` |
//!
//! Theirs end in `.weight` or `.bias`; ours only in `.bias`.
use layers::{NormKind, Positions, Shape};
use parallel::{Entry, Orientation};
use std::ops::Range;

/// What GPT-2's names begin with, but for the head's; files of its older versions leave it out.
const PREFIX: &str = "transformer.";
/// The head of every family.
pub const HEAD: &str = "lm_head.weight";

/// Every tensor of a file in the Hugging Face layout, in the program order of our parameters.
pub fn entries(shape: &Shape) -> Vec<Entry> {
    let mut all = Entries { all: Vec::new(), shape };
    match shape.positions {
        Positions::Rotary(_) => all.llama(),
        Positions::Learned(rows) => all.gpt2(rows),
    }
    if !shape.tied {
        all.add(HEAD, "head", shape.width, 0..shape.vocabulary, Orientation::Transposed);
    }
    all.all
}

/// The same, under the names that a file has: GPT-2's may lack their prefix.
pub fn entries_in<'a>(shape: &Shape, mut names: impl Iterator<Item = &'a str>) -> Vec<Entry> {
    let mut entries = entries(shape);
    if shape.context().is_some() && !names.any(|name| name.starts_with(PREFIX)) {
        for entry in &mut entries {
            entry.name = entry.name.trim_start_matches(PREFIX).to_owned();
        }
    }
    entries
}

/// The name of the embedding's table, in a file of these entries.
pub fn embedding(entries: &[Entry]) -> &str {
    &entries.iter().find(|entry| entry.param == "embedding").expect("every model has one").name
}

/// Whether a file may hold this tensor besides the parameters: masks and frequencies, which older versions of
/// `transformers` wrote and none reads, and the head of a model that uses the embedding's table.
pub fn is_passed_over(shape: &Shape, name: &str) -> bool {
    if name == HEAD {
        return shape.tied;
    }
    if shape.context().is_none() {
        return name.ends_with("rotary_emb.inv_freq");
    }
    let block = name.strip_prefix(PREFIX).unwrap_or(name).strip_prefix("h.");
    let buffer = block.and_then(|rest| rest.split_once('.'));
    buffer.is_some_and(|(block, buffer)| {
        block.bytes().all(|b| b.is_ascii_digit()) && matches!(buffer, "attn.bias" | "attn.masked_bias")
    })
}

/// A list in the making, of a model of this shape.
struct Entries<'a> {
    all: Vec<Entry>,
    shape: &'a Shape,
}

impl Entries<'_> {
    fn llama(&mut self) {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *self.shape;
        let (q, kv) = (heads.queries * heads.dim, heads.keys * heads.dim);
        self.table("model.embed_tokens", "embedding", vocabulary);
        for i in 0..blocks {
            let (theirs, ours) = (format!("model.layers.{i}"), format!("blocks.{i}"));
            let linear =
                |name: &str, columns| Part { name: format!("{theirs}.{name}_proj"), columns, same: false };
            self.norm(&format!("{theirs}.input_layernorm"), &format!("{ours}.norm1"), d);
            let columns = [0..q, q..q + kv, q + kv..q + 2 * kv];
            let names = ["self_attn.q", "self_attn.k", "self_attn.v"];
            let qkv = names.iter().zip(columns).map(|(name, columns)| linear(name, columns)).collect();
            self.linear(qkv, &format!("{ours}.attention.qkv"), d, bias.qkv);
            for norm in ["q_norm", "k_norm"].iter().filter(|_| self.shape.head_norm) {
                self.norm(
                    &format!("{theirs}.self_attn.{norm}"),
                    &format!("{ours}.attention.{norm}"),
                    heads.dim,
                );
            }
            self.linear(vec![linear("self_attn.o", 0..d)], &format!("{ours}.attention.out"), q, bias.out);
            self.norm(&format!("{theirs}.post_attention_layernorm"), &format!("{ours}.norm2"), d);
            let gate_up = vec![linear("mlp.gate", 0..f), linear("mlp.up", f..2 * f)];
            self.linear(gate_up, &format!("{ours}.mlp.gate_up"), d, bias.mlp);
            self.linear(vec![linear("mlp.down", 0..d)], &format!("{ours}.mlp.down"), f, bias.mlp);
        }
        self.norm("model.norm", "norm", d);
    }
    fn gpt2(&mut self, positions: usize) {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *self.shape;
        let (q, kv) = (heads.queries * heads.dim, heads.keys * heads.dim);
        self.table(&format!("{PREFIX}wte"), "embedding", vocabulary);
        self.table(&format!("{PREFIX}wpe"), "positions", positions);
        for i in 0..blocks {
            let (theirs, ours) = (format!("{PREFIX}h.{i}"), format!("blocks.{i}"));
            let linear =
                |name: &str, columns| vec![Part { name: format!("{theirs}.{name}"), columns, same: true }];
            self.norm(&format!("{theirs}.ln_1"), &format!("{ours}.norm1"), d);
            let qkv = linear("attn.c_attn", 0..q + 2 * kv);
            self.linear(qkv, &format!("{ours}.attention.qkv"), d, bias.qkv);
            self.linear(linear("attn.c_proj", 0..d), &format!("{ours}.attention.out"), q, bias.out);
            self.norm(&format!("{theirs}.ln_2"), &format!("{ours}.norm2"), d);
            self.linear(linear("mlp.c_fc", 0..f), &format!("{ours}.mlp.up"), d, bias.mlp);
            self.linear(linear("mlp.c_proj", 0..d), &format!("{ours}.mlp.down"), f, bias.mlp);
        }
        self.norm(&format!("{PREFIX}ln_f"), "norm", d);
    }

    /// A table with a row for each of something.
    fn table(&mut self, theirs: &str, ours: &str, rows: usize) {
        self.add(&format!("{theirs}.weight"), ours, rows, 0..self.shape.width, Orientation::Same);
    }
    /// The gain of a norm of so many features, and its bias where norms have one.
    fn norm(&mut self, theirs: &str, ours: &str, features: usize) {
        self.add(&format!("{theirs}.weight"), ours, 1, 0..features, Orientation::Vector);
        if self.shape.norm == NormKind::Layer {
            self.bias(theirs, ours, 0..features);
        }
    }
    /// A linear layer of so many inputs, theirs side by side, and their biases where it has them.
    fn linear(&mut self, theirs: Vec<Part>, ours: &str, inputs: usize, has_bias: bool) {
        for Part { name, columns, same } in &theirs {
            let orientation = if *same { Orientation::Same } else { Orientation::Transposed };
            self.add(&format!("{name}.weight"), ours, inputs, columns.clone(), orientation);
        }
        for Part { name, columns, .. } in theirs.into_iter().filter(|_| has_bias) {
            self.bias(&name, ours, columns);
        }
    }
    fn bias(&mut self, theirs: &str, ours: &str, columns: Range<usize>) {
        self.add(&format!("{theirs}.bias"), &format!("{ours}.bias"), 1, columns, Orientation::Vector);
    }
    fn add(&mut self, name: &str, param: &str, rows: usize, columns: Range<usize>, orientation: Orientation) {
        self.all.push(Entry { name: name.into(), param: param.into(), rows, columns, orientation });
    }
}

/// One of their linear layers: these columns of ours.
struct Part {
    name: String,
    columns: Range<usize>,
    same: bool, // `[inputs, outputs]`, as ours are
}

#[cfg(test)]
mod tests;
