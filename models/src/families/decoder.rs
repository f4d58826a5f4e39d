//! A decoder with rotary positions: Llama, and the families that differ from it in defaults, biases, norms of
//! heads, windows and experts. A family's file chooses these parts.
//!
//! | ours | theirs |
//! |---|---|
//! | `embedding` | `model.embed_tokens` |
//! | `blocks.0.norm{1,2}` | `model.layers.0.{input,post_attention}_layernorm` ([others](block_norms)) |
//! | `.attention.{qkv,out}` | `self_attn.{q,k,v}_proj`, `.o_proj` |
//! | `.attention.q_norm`, `.k_norm` | the same in `self_attn` |
//! | `.attention.scores.sinks` | `self_attn.sinks` |
//! | `.mlp.gate_up`, `.mlp.down` | `mlp.{gate,up}_proj`, `.down_proj` |
//! | fused: `.attention.qkv`, `.mlp.gate_up` | `self_attn.qkv_proj`, `mlp.gate_up_proj` |
//! | `norm`, `head` | `model.norm`, `lm_head` |
//!
//! Names of experts: [`ExpertKeys::add`].
use super::latents;
use super::rope::{self, RopeRules};
use crate::config::{Config, ConfigKeys, FamilyInfo, KeyValue, Products};
use crate::names::Entries;
use kernels::Heads;
use layers::{Biases, FeedForward, Gate, NormPlaces, Positions, Rates, Shape};
use parallel::{Entry, Orientation, Result};
use serde_json::{Value, json};

// Parts that a family's file chooses.
pub(super) use super::experts::ExpertKeys;
pub(super) use super::parts::ShapeKeys;
pub(super) use super::windows;
pub(super) use crate::config::Family;

/// Keys that all these families read.
const READ: &str = "\
    attention_dropout head_dim hidden_size intermediate_size max_position_embeddings num_attention_heads \
    num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps rope_parameters rope_scaling rope_theta";
/// Keys that all these families fix.
const FIXED: &str = "rope_interleaved=false";

/// A key that says whether layers have biases, and these layers; the first has the default.
pub(super) type BiasKey = (&'static str, fn(&mut Biases) -> Vec<&mut bool>);
/// The key of all biases of attention.
pub(super) const ATTENTION_BIAS: BiasKey = ("attention_bias", |bias| vec![&mut bias.qkv, &mut bias.out]);

/// The key of both biases of the feed-forward.
pub(super) const MLP_BIAS: BiasKey = ("mlp_bias", |bias| vec![&mut bias.mlp]);

/// Llama with biases of queries, keys and values alone.
pub(super) const QKV: Shape = Shape { bias: Biases { qkv: true, out: false, mlp: false }, ..Shape::LLAMA };

/// Defaults of `transformers` for missing keys.
pub(super) struct Defaults {
    /// Number of token ids, if files may lack it.
    pub(super) vocabulary: Option<usize>,
    /// Number of query heads, if files may lack it.
    pub(super) queries: Option<usize>,
    /// Number of KV heads; `None`: the number of query heads.
    pub(super) key_heads: Option<usize>,
    /// Width of a head; `None`: width / query heads.
    pub(super) head_dim: Option<usize>,
    /// Number of positions.
    pub(super) positions: usize,
    /// Tokens that begin and end a text.
    pub(super) ids: [Option<u32>; 2],
    /// Value of `rms_norm_eps`.
    pub(super) eps: f64,
    /// Value of `rope_theta`.
    pub(super) base: f64,
    /// Id of padding.
    pub(super) padding: Option<usize>,
    /// True if the head uses the embedding's table.
    pub(super) tied: bool,
}
/// Defaults of most families.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocabulary: None,
    queries: None,
    key_heads: None,
    head_dim: None,
    positions: 2048,
    ids: [None; 2],
    eps: 1e-6,
    base: 1e4,
    padding: None,
    tied: false,
};

/// The parts in which families differ.
pub(super) struct Decoder {
    /// The `model_type` of a `config.json`.
    pub(super) model_type: &'static str,
    /// Class in `transformers`.
    pub(super) class: &'static str,
    /// Keys that are fixed besides those of all decoders, with the values that change nothing.
    pub(super) fixed: &'static str,
    /// Defaults for missing keys.
    pub(super) defaults: Defaults,
    /// Settings of all models of the family; the biases are those of a file without their keys.
    pub(super) usual: Shape,
    /// Keys of biases.
    pub(super) bias_keys: &'static [BiasKey],
    /// True if files have gains of norms less 1.
    pub(super) plus_one: bool,
    /// Base of the frequencies in blocks with a window, if they have frequencies of their own.
    pub(super) local_base: Option<f64>,
    /// True if a part of each head may be rotated, the first features.
    pub(super) partial: bool,
    /// True if files have queries, keys and values as one matrix, and gate and up as another.
    pub(super) fused: bool,
    /// Keys of windows and other parts, in the order in which they are read.
    pub(super) parts: &'static [ShapeKeys],
    /// Keys of experts, if there are any.
    pub(super) experts: Option<ExpertKeys>,
    /// Returns true for a tensor that files may have besides those of the model.
    pub(super) spare: fn(&Shape, &str) -> bool,
    /// Family that a model joins if it is given experts.
    pub(super) upcycled: Option<&'static dyn Family>,
}

impl Decoder {
    /// A decoder of these names, with neither biases nor other parts.
    pub(super) const fn of(model_type: &'static str, class: &'static str) -> Self {
        Self {
            model_type,
            class,
            fixed: "",
            defaults: DEFAULTS,
            usual: Shape::LLAMA,
            bias_keys: &[],
            plus_one: false,
            local_base: None,
            partial: false,
            fused: false,
            parts: &[],
            experts: None,
            spare: |_, _| false,
            upcycled: None,
        }
    }
    fn heads(&self, config: &ConfigKeys<'_>, width: usize, queries: usize) -> Result<Heads> {
        let keys = match config.map.get("num_key_value_heads") {
            Some(Value::Null) => queries,
            _ => config.size("num_key_value_heads", Some(self.defaults.key_heads.unwrap_or(queries)))?,
        };
        let dim = match (config.given("head_dim"), self.defaults.head_dim) {
            (Some(_), _) => config.size("head_dim", None)?,
            (None, Some(dim)) => dim,
            (None, None) if width.is_multiple_of(queries) => width / queries,
            (None, None) => {
                let wanted =
                    format!("a multiple of the {queries} num_attention_heads where head_dim is not given");
                return Err(config.wrong("hidden_size", &json!(width), &wanted));
            }
        };
        if !queries.is_multiple_of(keys) {
            let wanted = format!("a multiple of the {keys} num_key_value_heads");
            return Err(config.wrong("num_attention_heads", &json!(queries), &wanted));
        }
        let rotated = if self.partial { config.rotated(dim)? } else { dim };
        Ok(Heads { rotated, ..Heads::new(queries, keys, dim) })
    }
    /// Returns the keys of the activation that are fixed, and the key and value that are written.
    fn activation(&self) -> (&'static str, &'static str, &'static str) {
        match self.usual.feed_forward {
            FeedForward::Gated(Gate::GeluTanh) => (
                r#"hidden_activation="gelu_pytorch_tanh" hidden_act="gelu_pytorch_tanh""#,
                "hidden_activation",
                "gelu_pytorch_tanh",
            ),
            _ => (r#"hidden_act="silu","swish""#, "hidden_act", "silu"),
        }
    }
    fn biases(&self, config: &ConfigKeys<'_>) -> Result<Biases> {
        let mut bias = self.usual.bias;
        for (key, layers) in self.bias_keys {
            let has_bias = config.flag(key, *layers(&mut bias)[0])?;
            for layer in layers(&mut bias) {
                *layer = has_bias;
            }
        }
        Ok(bias)
    }
}

/// Returns the id of padding. As in `PyTorch`, a negative id counts from the end of the vocabulary.
fn padding(config: &ConfigKeys<'_>, default: Option<usize>, vocabulary: usize) -> Result<Option<usize>> {
    let wanted = format!("null or a token id below the vocab_size of {vocabulary}");
    if !config.map.contains_key("pad_token_id") {
        return Ok(default.filter(|id| *id < vocabulary));
    }
    config.read("pad_token_id", &wanted, |value| {
        let id = i128::from(value.as_i64()?);
        let id = if id < 0 { id + vocabulary as i128 } else { id };
        usize::try_from(id).ok().filter(|id| *id < vocabulary)
    })
}

/// Returns the names of a block's norms: `norm1`, `post_norm1`, `norm2` and `post_norm2`.
fn block_norms(places: NormPlaces) -> [&'static str; 4] {
    const AFTER: [&str; 2] = ["post_attention_layernorm", "post_feedforward_layernorm"];
    match places {
        NormPlaces::Before => ["input_layernorm", "", "post_attention_layernorm", ""],
        NormPlaces::After => ["", AFTER[0], "", AFTER[1]],
        NormPlaces::Both => ["input_layernorm", AFTER[0], "pre_feedforward_layernorm", AFTER[1]],
    }
}

impl Family for Decoder {
    fn about(&self) -> FamilyInfo {
        let biases = self.bias_keys.iter().map(|(key, _)| *key);
        let experts = self.experts.iter().flat_map(ExpertKeys::read_keys);
        let parts = self.parts.iter().map(|part| part.read_keys);
        let read = [READ, rope::partial(self.partial)[0]]
            .into_iter()
            .chain(parts)
            .chain(biases)
            .chain(experts)
            .collect();
        let fixed = vec![FIXED, self.activation().0, self.fixed, rope::partial(self.partial)[1]];
        FamilyInfo { model_type: self.model_type, class: self.class, read, fixed }
    }
    fn config(&'static self, keys: &ConfigKeys<'_>) -> Result<Config> {
        let width = keys.size("hidden_size", None)?;
        let heads = self.heads(keys, width, keys.size("num_attention_heads", self.defaults.queries)?)?;
        let vocabulary = keys.size("vocab_size", self.defaults.vocabulary)?;
        let blocks = keys.size("num_hidden_layers", None)?;
        let positions = keys.size("max_position_embeddings", Some(self.defaults.positions))?;
        let rules = RopeRules {
            positions,
            base: self.defaults.base,
            has_parts: self.partial,
            pairs: heads.rotated / 2,
        };
        let [rope, local] = keys.ropes(rules, self.local_base)?;
        let mut shape = Shape {
            width,
            blocks,
            heads,
            hidden: keys.size("intermediate_size", None)?,
            vocabulary,
            padding: padding(keys, self.defaults.padding, vocabulary)?,
            eps: keys.positive("rms_norm_eps")?.unwrap_or(self.defaults.eps),
            tied: keys.flag("tie_word_embeddings", self.defaults.tied)?,
            positions: Positions::Rotary(rope),
            bias: self.biases(keys)?,
            dropout: Rates { attention: keys.rate("attention_dropout", 0.0)?, ..Shape::LLAMA.dropout },
            ..self.usual
        };
        let spare = self.experts.as_ref().map(|experts| experts.read(keys, &mut shape)).transpose()?;
        for part in self.parts {
            (part.read)(keys, &mut shape)?;
        }
        if rope != local && shape.window.is_some() {
            let is_local = |block| shape.block(block).window.is_some();
            shape.pattern.other_positions = keys.some_blocks(blocks, "other frequencies", is_local)?;
            shape.pattern.other_rope = Some(local);
        }
        let (bos, eos) = keys.ends(self.defaults.ids, vocabulary)?;
        let spare_coefficient = spare.unwrap_or(0.0);
        let positions = rope::reached(rope, positions);
        Ok(Config { family: self, shape, positions, bos, eos, spare_coefficient, wrapper: None })
    }
    fn keys(&self, config: &Config) -> Vec<KeyValue> {
        let shape = &config.shape;
        let mut keys = vec![
            ("attention_dropout", json!(shape.dropout.attention)),
            ("head_dim", json!(shape.heads.dim)),
            (self.activation().1, json!(self.activation().2)),
            ("hidden_size", json!(shape.width)),
            ("intermediate_size", json!(shape.hidden)),
            ("max_position_embeddings", json!(rope::stated(shape.positions, config.positions))),
            ("num_attention_heads", json!(shape.heads.queries)),
            ("num_hidden_layers", json!(shape.blocks)),
            ("num_key_value_heads", json!(shape.heads.keys)),
            ("pad_token_id", json!(shape.padding)),
            ("rms_norm_eps", json!(shape.eps)),
        ];
        let mut bias = shape.bias;
        keys.extend(self.bias_keys.iter().map(|(key, layers)| (*key, json!(*layers(&mut bias)[0]))));
        if let Positions::Rotary(rope) = shape.positions {
            let of_windows = shape.window.map(|_| shape.pattern.other_rope.unwrap_or(rope));
            let local = self.local_base.map(|base| of_windows.unwrap_or(base.into()));
            keys.extend(rope::keys(rope, local, self.partial.then_some(shape.heads)));
        }
        keys.extend(self.parts.iter().flat_map(|part| (part.keys)(shape)));
        if let (Some(of), Some(experts)) = (&self.experts, shape.experts) {
            keys.extend(of.keys(config, &experts));
        }
        keys
    }
    fn products(&self, config: &Config) -> Products {
        let Shape {
            width, blocks, heads: Heads { queries, keys, dim, .. }, hidden, vocabulary, experts, ..
        } = config.shape;
        let (d, n, dim) = (("hidden_size", width), ("num_hidden_layers", blocks), ("head_dim", dim));
        let mut products = vec![
            vec![("vocab_size", vocabulary), d],
            vec![n, d],
            vec![n, d, ("num_attention_heads", queries), dim],
            vec![n, d, ("num_key_value_heads", keys), dim],
            vec![n, d, ("intermediate_size", hidden)],
            vec![("max_position_embeddings", config.positions), dim],
        ];
        if let (Some(of), Some(experts)) = (&self.experts, experts) {
            products.push(vec![n, d, (of.count[0], experts.count), (of.hidden, experts.hidden)]);
            products.extend(experts.shared.map(|expert| vec![n, d, (of.shared, expert.hidden)]));
        }
        products.extend(config.shape.latent.iter().flat_map(|of| latents::products(&config.shape, *of)));
        (n.0, products)
    }
    fn entries(&self, shape: &Shape) -> Vec<Entry> {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *shape;
        let mut entries = Entries::of(shape, Orientation::Transposed);
        entries.plus_one = self.plus_one;
        let norms = block_norms(shape.norms);
        let norm = |entries: &mut Entries<'_>, which: usize| {
            if !norms[which].is_empty() {
                entries.norm(norms[which], ["norm1", "post_norm1", "norm2", "post_norm2"][which], d);
            }
        };
        entries.table("model.embed_tokens", "embedding", vocabulary);
        for i in 0..blocks {
            entries.within = [format!("model.layers.{i}."), format!("blocks.{i}.")];
            norm(&mut entries, 0);
            if let Some(latent) = shape.latent {
                latents::add(&mut entries, latent);
            } else {
                let qkv = [("q", heads.q()), ("k", heads.k()), ("v", heads.v())];
                let qkv = if self.fused { vec![("qkv", 0..heads.row())] } else { qkv.into() };
                let named = |(part, columns)| (format!("self_attn.{part}_proj"), columns);
                entries.linear(&qkv.into_iter().map(named).collect::<Vec<_>>(), "attention.qkv", d, bias.qkv);
            }
            for (norm, all) in [("q_norm", heads.q()), ("k_norm", heads.k())] {
                let features = if shape.joint_norm { all.len() } else { heads.dim };
                if shape.head_norm || shape.joint_norm {
                    entries.norm(&format!("self_attn.{norm}"), &format!("attention.{norm}"), features);
                }
            }
            if shape.scores.sinks {
                entries.vector("self_attn.sinks", "attention.scores.sinks", 0..heads.queries);
            }
            entries.linear(&[("self_attn.o_proj", 0..d)], "attention.out", heads.gathered(), bias.out);
            norm(&mut entries, 1);
            norm(&mut entries, 2);
            match shape.block(i).experts {
                Some(experts) => {
                    self.experts.as_ref().expect("a family of experts").add(&mut entries, experts);
                }
                None => entries.gated("mlp", "mlp", f, self.fused),
            }
            norm(&mut entries, 3);
        }
        entries.within = Default::default();
        entries.norm("model.norm", "norm", d);
        entries.with_head()
    }
    fn rename(&self, entries: &mut [Entry], shape: &Shape, names: &[&str]) {
        if let (Some(of), Some(experts)) = (self.experts.as_ref().filter(|of| !of.packed), shape.experts)
            && names.iter().any(|name| name.ends_with(".mlp.experts.gate_up_proj"))
        {
            of.fuse(entries, experts);
        }
    }
    fn is_spare(&self, shape: &Shape, name: &str) -> bool {
        name.ends_with("rotary_emb.inv_freq") || (self.spare)(shape, name)
    }
    fn upcycled(&self) -> Option<&'static dyn Family> {
        self.upcycled
    }
}
