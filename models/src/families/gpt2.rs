//! GPT-2: layer norms, a table of positions, a plain feed-forward, biases everywhere. Source: Radford et al.,
//! "Language models are unsupervised multitask learners", 2019.
//!
//! | ours | theirs |
//! |---|---|
//! | `embedding`, `positions` | `transformer.wte`, `transformer.wpe` |
//! | `blocks.0.norm{1,2}` | `transformer.h.0.ln_{1,2}` |
//! | `.attention.{qkv,out}` | `attn.c_attn`, `attn.c_proj` |
//! | `.mlp.up`, `.mlp.down` | `mlp.c_fc`, `mlp.c_proj` |
//! | `norm`, `head` | `transformer.ln_f`, `lm_head` |
//!
//! Linear layers are `[inputs, outputs]`, as ours, and queries, keys and values are one.
use crate::config::{Config, ConfigKeys, Family, FamilyInfo, KeyValue, Products};
use crate::names::Entries;
use kernels::{Activation, Heads};
use layers::{FeedForward, Positions, Rates, Shape};
use parallel::{Entry, Orientation, Result};
use serde_json::{Value, json};

/// GPT-2.
pub const GPT2: &dyn Family = &Gpt2;

/// The family whose configuration has keys of its own.
struct Gpt2;

const READ: &str = "\
    activation_function attn_pdrop embd_pdrop layer_norm_epsilon n_ctx n_embd n_head n_inner n_layer n_positions \
    resid_pdrop";
const FIXED: &str =
    "reorder_and_upcast_attn=false scale_attn_by_inverse_layer_idx=false scale_attn_weights=true";
/// Keys of other heads; and of padding, which GPT-2's embedding ignores.
const FREE: &str = "\
    pad_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj";

/// Prefix of the names, except the head's; files of older versions leave it out.
const PREFIX: &str = "transformer.";

/// Activation functions of the feed-forward, by their names in `transformers`. The first name of each
/// function is the one written.
const ACTIVATIONS: [(&str, Activation); 4] = [
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu", Activation::Gelu),
    ("relu", Activation::Relu),
];

impl Family for Gpt2 {
    fn about(&self) -> FamilyInfo {
        let read = vec![READ, FREE];
        FamilyInfo { model_type: "gpt2", class: "GPT2LMHeadModel", read, fixed: vec![FIXED] }
    }
    fn config(&'static self, keys: &ConfigKeys<'_>) -> Result<Config> {
        let (width, heads) = (keys.size("n_embd", None)?, keys.size("n_head", None)?);
        if !width.is_multiple_of(heads) {
            return Err(keys.wrong("n_embd", &json!(width), &format!("a multiple of the {heads} n_head")));
        }
        let positions = keys.size("n_positions", Some(1024))?;
        let wanted = format!("{positions}, as n_positions is, or left out");
        keys.read("n_ctx", &wanted, |other| (*other == positions).then_some(()))?;
        let vocabulary = keys.size("vocab_size", None)?;
        let shape = Shape {
            width,
            blocks: keys.size("n_layer", None)?,
            heads: Heads::new(heads, heads, width / heads),
            hidden: keys.size("n_inner", Some(width.saturating_mul(4)))?,
            vocabulary,
            eps: keys.positive("layer_norm_epsilon")?.unwrap_or(1e-5),
            tied: keys.flag("tie_word_embeddings", true)?,
            positions: Positions::Learned(positions),
            feed_forward: FeedForward::Plain(keys.activation()?),
            dropout: Rates {
                embedding: keys.rate("embd_pdrop", 0.1)?,
                attention: keys.rate("attn_pdrop", 0.1)?,
                residual: keys.rate("resid_pdrop", 0.1)?,
            },
            ..Shape::GPT2
        };
        let (bos, eos) = keys.ends([Some(50256); 2], vocabulary)?;
        Ok(Config { family: self, shape, positions, bos, eos, spare_coefficient: 0.0, wrapper: None })
    }
    fn keys(&self, config: &Config) -> Vec<KeyValue> {
        let shape = &config.shape;
        let activation = match shape.feed_forward {
            FeedForward::Plain(f) => ACTIVATIONS.iter().find(|(_, other)| *other == f).expect("all are named").0,
            FeedForward::Gated(_) => unreachable!("GPT-2 has a plain feed-forward"),
        };
        vec![
            ("activation_function", json!(activation)),
            ("add_cross_attention", json!(false)),
            ("attn_pdrop", json!(shape.dropout.attention)),
            ("embd_pdrop", json!(shape.dropout.embedding)),
            ("layer_norm_epsilon", json!(shape.eps)),
            ("n_embd", json!(shape.width)),
            ("n_head", json!(shape.heads.queries)),
            ("n_inner", json!(shape.hidden)),
            ("n_layer", json!(shape.blocks)),
            ("n_positions", json!(config.positions)),
            ("reorder_and_upcast_attn", json!(false)),
            ("resid_pdrop", json!(shape.dropout.residual)),
            ("scale_attn_by_inverse_layer_idx", json!(false)),
            ("scale_attn_weights", json!(true)),
        ]
    }
    fn products(&self, config: &Config) -> Products {
        let Shape { width, blocks, hidden, vocabulary, .. } = config.shape;
        let (d, n) = (("n_embd", width), ("n_layer", blocks));
        let tables = [("vocab_size", vocabulary), ("n_positions", config.positions)].map(|table| vec![table, d]);
        (n.0, [&tables[..], &[vec![n, d, d], vec![n, d, ("n_inner", hidden)]]].concat())
    }
    fn entries(&self, shape: &Shape) -> Vec<Entry> {
        let Shape { width: d, blocks, heads, hidden: f, vocabulary, bias, .. } = *shape;
        let mut entries = Entries::of(shape, Orientation::Same);
        entries.table(&format!("{PREFIX}wte"), "embedding", vocabulary);
        entries.table(&format!("{PREFIX}wpe"), "positions", shape.context().expect("learned positions"));
        for i in 0..blocks {
            entries.within = [format!("{PREFIX}h.{i}."), format!("blocks.{i}.")];
            entries.norm("ln_1", "norm1", d);
            entries.linear(&[("attn.c_attn", 0..heads.row())], "attention.qkv", d, bias.qkv);
            entries.linear(&[("attn.c_proj", 0..d)], "attention.out", heads.gathered(), bias.out);
            entries.norm("ln_2", "norm2", d);
            entries.linear(&[("mlp.c_fc", 0..f)], "mlp.up", d, bias.mlp);
            entries.linear(&[("mlp.c_proj", 0..d)], "mlp.down", f, bias.mlp);
        }
        entries.within = Default::default();
        entries.norm(&format!("{PREFIX}ln_f"), "norm", d);
        entries.with_head()
    }
    fn rename(&self, entries: &mut [Entry], _: &Shape, names: &[&str]) {
        if !names.iter().any(|name| name.starts_with(PREFIX)) {
            for entry in entries {
                entry.name = entry.name.trim_start_matches(PREFIX).to_owned();
            }
        }
    }
    fn is_spare(&self, _: &Shape, name: &str) -> bool {
        let block = name.strip_prefix(PREFIX).unwrap_or(name).strip_prefix("h.");
        let buffer = block.and_then(|rest| rest.split_once('.'));
        buffer.is_some_and(|(block, buffer)| {
            block.bytes().all(|b| b.is_ascii_digit()) && matches!(buffer, "attn.bias" | "attn.masked_bias")
        })
    }
    fn upcycled(&self) -> Option<&'static dyn Family> {
        None
    }
}

impl ConfigKeys<'_> {
    fn activation(&self) -> Result<Activation> {
        let wanted = ACTIVATIONS.map(|(name, _)| format!("\"{name}\"")).join(" or ") + ", or left out";
        let known = |value: &Value| Some(ACTIVATIONS.iter().find(|(name, _)| value == name)?.1);
        Ok(self.read("activation_function", &wanted, known)?.unwrap_or(Activation::GeluTanh))
    }
}

