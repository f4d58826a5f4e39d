//! Canonical names ↔ Hugging Face names. Our fused matrices are several of theirs side by side. Their linear
//! layers are `[outputs, inputs]`; GPT-2's are `[inputs, outputs]`, as ours, and fused its own way.
//!
//! | ours | Llama, Mistral, Qwen | GPT-2 |
//! |---|---|---|
//! | `embedding`, `positions` | `model.embed_tokens`, none | `transformer.wte`, `transformer.wpe` |
//! | `blocks.0.norm{1,2}` | `model.layers.0.{input,post_attention}_layernorm` | `transformer.h.0.ln_{1,2}` |
//! | `.attention.{qkv,out}` | `self_attn.{q,k,v}_proj`, `.o_proj` | `attn.c_attn`, `attn.c_proj` |
//! | `.attention.q_norm`, `.k_norm` | the same in `self_attn` | none |
//! | `.mlp.gate_up`, `.mlp.down` | `mlp.{gate,up}_proj`, `.down_proj` | none |
//! | `.mlp.up`, `.mlp.down` | none | `mlp.c_fc`, `mlp.c_proj` |
//! | `norm`, `head` | `model.norm`, `lm_head` | `transformer.ln_f`, `lm_head` |
//!
//! Their names end in `.weight` or `.bias`; ours only in `.bias`. Names of experts: `Entries::experts`,
//! `fuse`.
use crate::Config;
use crate::config::Architecture;
use layers::{Experts, NormKind, Shape};
use parallel::{Entry, Orientation, Stacked};
use std::fmt::Display;
use std::ops::Range;

/// Prefix of GPT-2's names, except the head's; files of older versions leave it out.
const PREFIX: &str = "transformer.";
/// Name of the head, in every family.
pub const HEAD: &str = "lm_head.weight";

/// Returns every tensor of a file in the Hugging Face layout, in the program order of our parameters.
pub fn entries(config: &Config) -> Vec<Entry> {
    let shape = &config.shape;
    let within = Default::default();
    let mut entries = Entries { all: Vec::new(), architecture: config.architecture, shape, within };
    match shape.context() {
        None => entries.llama(),
        Some(rows) => entries.gpt2(rows),
    }
    if !shape.tied {
        entries.add(HEAD, "head", shape.width, 0..shape.vocabulary, Orientation::Transposed);
    }
    entries.all
}

/// Returns the same entries under a file's own names: GPT-2's may lack their prefix, and experts may be
/// fused.
pub fn entries_in<'a>(config: &Config, mut names: impl Iterator<Item = &'a str>) -> Vec<Entry> {
    let mut entries = entries(config);
    if config.shape.context().is_some() {
        if !names.any(|name| name.starts_with(PREFIX)) {
            for entry in &mut entries {
                entry.name = entry.name.trim_start_matches(PREFIX).to_owned();
            }
        }
    } else if let Some(experts) = config.shape.experts
        && names.any(|name| name.ends_with(".mlp.experts.gate_up_proj"))
    {
        for entry in &mut entries {
            fuse(entry, experts);
        }
    }
    entries
}

/// Renames an entry, and sets its place, for fused experts: as version 5 of `transformers` holds experts in
/// memory and, if asked not to save the original format, writes them. All experts of a block are in two
/// tensors: `mlp.experts.gate_up_proj` `[E, 2·F, H]`, with an expert's gate above its up, and
/// `mlp.experts.down_proj` `[E, H, F]`. Mixtral's router is then in `mlp`, too.
fn fuse(entry: &mut Entry, Experts { count, hidden, .. }: Experts) {
    entry.name = entry.name.replace(".block_sparse_moe.", ".mlp.");
    let Some((_, param)) = entry.param.rsplit_once(".experts.") else { return };
    let (block, _) = entry.name.split_once(".experts.").expect("it is an expert's");
    let expert = entry.rows.start / entry.rows.len();
    let (rows, above) = match entry.orientation {
        Orientation::Transposed => (2 * hidden, entry.columns.start),
        _ => (entry.shape()[0], 0),
    };
    entry.within = Some(Stacked { stack: [count, rows], first: expert * rows + above });
    entry.name = format!("{block}.experts.{param}_proj");
}

/// Returns the name of the embedding's table, in a file with these entries.
pub fn embedding(entries: &[Entry]) -> &str {
    &entries.iter().find(|entry| entry.param == "embedding").expect("every model has one").name
}

/// Returns true if a file may hold this tensor besides the parameters: masks and frequencies, which older
/// versions of `transformers` wrote and no version reads, and the head of a model that uses the embedding's
/// table.
pub fn is_ignored(shape: &Shape, name: &str) -> bool {
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

/// List of entries under construction, for a model of this shape.
struct Entries<'a> {
    all: Vec<Entry>,
    architecture: Architecture,
    shape: &'a Shape,
    within: [String; 2], // prefixes of their names, and of ours
}

impl Entries<'_> {
    fn llama(&mut self) {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *self.shape;
        let [q, kv] = [heads.queries, heads.keys].map(|n| n * heads.dim);
        self.table("model.embed_tokens", "embedding", vocabulary);
        for i in 0..blocks {
            self.within = [format!("model.layers.{i}."), format!("blocks.{i}.")];
            self.norm("input_layernorm", "norm1", d);
            let qkv = [("q", 0..q), ("k", q..q + kv), ("v", q + kv..q + 2 * kv)];
            let qkv = qkv.map(|(name, columns)| (format!("self_attn.{name}_proj"), columns));
            self.linear(&qkv, "attention.qkv", d, bias.qkv);
            for norm in ["q_norm", "k_norm"].iter().filter(|_| self.shape.head_norm) {
                self.norm(&format!("self_attn.{norm}"), &format!("attention.{norm}"), heads.dim);
            }
            self.linear(&[("self_attn.o_proj", 0..d)], "attention.out", q, bias.out);
            self.norm("post_attention_layernorm", "norm2", d);
            match self.shape.block(i).experts {
                Some(experts) => self.experts(experts),
                None => self.swiglu("mlp", "mlp", f),
            }
        }
        self.within = Default::default();
        self.norm("model.norm", "norm", d);
    }
    /// Adds a feed-forward with `f` hidden features.
    fn swiglu(&mut self, theirs: &str, ours: &str, f: usize) {
        let Shape { width: d, bias, .. } = *self.shape;
        let [gate, up, down] = ["gate", "up", "down"].map(|name| format!("{theirs}.{name}_proj"));
        self.linear(&[(gate, 0..f), (up, f..2 * f)], &format!("{ours}.gate_up"), d, bias.mlp);
        self.linear(&[(down, 0..d)], &format!("{ours}.down"), f, bias.mlp);
    }
    /// Adds a router, its experts, and the shared expert. In our matrices, experts `e` lie one below the
    /// other.
    ///
    /// | ours | Mixtral | Qwen, `equipart_moe` |
    /// |---|---|---|
    /// | `.mlp.router` | `block_sparse_moe.gate` | `mlp.gate` |
    /// | `.mlp.router.bias` | none | `mlp.gate.e_score_correction_bias` |
    /// | `.mlp.experts.gate_up` | `block_sparse_moe.experts.e.{w1,w3}` | `mlp.experts.e.{gate,up}_proj` |
    /// | `.mlp.experts.down` | `block_sparse_moe.experts.e.w2` | `mlp.experts.e.down_proj` |
    /// | `.mlp.shared` | none | `mlp.shared_expert` (gated), `mlp.shared_experts` |
    /// | `.mlp.shared.gate` | none | `mlp.shared_expert_gate` |
    ///
    /// `.mlp.experts.down` is `[outputs, inputs]`, as theirs. `.mlp.shared` has the matrices of a usual
    /// feed-forward.
    fn experts(&mut self, Experts { count, hidden: f, shared, bias, .. }: Experts) {
        let d = self.shape.width;
        let (mlp, [gate, up, down]) = match self.architecture {
            Architecture::Mixtral => ("block_sparse_moe", ["w1", "w3", "w2"]),
            _ => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        };
        self.linear(&[(format!("{mlp}.gate"), 0..count)], "mlp.router", d, false);
        if bias.is_some() {
            let theirs = format!("{mlp}.gate.e_score_correction_bias");
            self.add(&theirs, "mlp.router.bias", 1, 0..count, Orientation::Vector);
        }
        let first = [(gate, 0..f), (up, f..2 * f)].map(|part| (part, "gate_up", Orientation::Transposed));
        for parts in [&first[..], &[((down, 0..f), "down", Orientation::Same)]] {
            for (e, ((name, columns), param, orientation)) in
                (0..count).flat_map(|e| parts.iter().map(move |part| (e, part)))
            {
                let theirs = format!("{mlp}.experts.{e}.{name}.weight");
                let ours = format!("mlp.experts.{param}");
                self.add_rows(&theirs, &ours, (count * d, e * d..(e + 1) * d), columns.clone(), *orientation);
            }
        }
        let Some(shared) = shared else { return };
        let name = if shared.gated { "shared_expert" } else { "shared_experts" };
        self.swiglu(&format!("{mlp}.{name}"), "mlp.shared", shared.hidden);
        if shared.gated {
            self.linear(&[(format!("{mlp}.shared_expert_gate"), 0..1)], "mlp.shared.gate", d, false);
        }
    }
    fn gpt2(&mut self, positions: usize) {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *self.shape;
        let [q, kv] = [heads.queries, heads.keys].map(|n| n * heads.dim);
        self.table(&format!("{PREFIX}wte"), "embedding", vocabulary);
        self.table(&format!("{PREFIX}wpe"), "positions", positions);
        for i in 0..blocks {
            self.within = [format!("{PREFIX}h.{i}."), format!("blocks.{i}.")];
            self.norm("ln_1", "norm1", d);
            self.linear(&[("attn.c_attn", 0..q + 2 * kv)], "attention.qkv", d, bias.qkv);
            self.linear(&[("attn.c_proj", 0..d)], "attention.out", q, bias.out);
            self.norm("ln_2", "norm2", d);
            self.linear(&[("mlp.c_fc", 0..f)], "mlp.up", d, bias.mlp);
            self.linear(&[("mlp.c_proj", 0..d)], "mlp.down", f, bias.mlp);
        }
        self.within = Default::default();
        self.norm(&format!("{PREFIX}ln_f"), "norm", d);
    }

    /// Adds a table with this number of rows.
    fn table(&mut self, theirs: &str, ours: &str, rows: usize) {
        self.add(&format!("{theirs}.weight"), ours, rows, 0..self.shape.width, Orientation::Same);
    }
    /// Adds the gain of a norm over this number of features, and its bias if norms have one.
    fn norm(&mut self, theirs: &str, ours: &str, features: usize) {
        self.add(&format!("{theirs}.weight"), ours, 1, 0..features, Orientation::Vector);
        if self.shape.norm == NormKind::Layer {
            self.bias(theirs, ours, 0..features);
        }
    }
    /// Adds a linear layer with this number of inputs. `theirs` are side by side, each with its columns of
    /// ours; their biases follow if `has_bias`.
    fn linear(&mut self, theirs: &[(impl Display, Range<usize>)], ours: &str, inputs: usize, has_bias: bool) {
        let is_gpt2 = self.shape.context().is_some();
        let orientation = if is_gpt2 { Orientation::Same } else { Orientation::Transposed };
        for (name, columns) in theirs {
            self.add(&format!("{name}.weight"), ours, inputs, columns.clone(), orientation);
        }
        for (name, columns) in theirs.iter().filter(|_| has_bias) {
            self.bias(name, ours, columns.clone());
        }
    }
    fn bias(&mut self, theirs: impl Display, ours: &str, columns: Range<usize>) {
        self.add(&format!("{theirs}.bias"), &format!("{ours}.bias"), 1, columns, Orientation::Vector);
    }
    fn add(&mut self, name: &str, param: &str, rows: usize, columns: Range<usize>, orientation: Orientation) {
        self.add_rows(name, param, (rows, 0..rows), columns, orientation);
    }
    fn add_rows(
        &mut self,
        name: &str,
        param: &str,
        (height, rows): (usize, Range<usize>),
        columns: Range<usize>,
        orientation: Orientation,
    ) {
        let [theirs, ours] = &self.within;
        let (name, param) = (format!("{theirs}{name}"), format!("{ours}{param}"));
        self.all.push(Entry { name, param, height, rows, columns, orientation, within: None });
    }
}

#[cfg(test)]
pub(crate) mod tests;
