//! Llama, Mistral, Qwen2 and Qwen3: one decoder, of which each has its own biases, norms and windows.
use super::{Architecture, Config, Keys, rope, window};
use kernels::Heads;
use layers::{Biases, FeedForward, NormKind, Positions, Rates, Shape};
use parallel::Result;
use serde_json::{Value, json};

/// What `transformers` gives to keys that are left out, where it differs.
struct Defaults {
    key_heads: Option<usize>, // none: as many as query heads
    head_dim: Option<usize>,  // none: the width's share
    positions: usize,
    ids: [Option<u32>; 2],
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let (key_heads, head_dim, positions, ids) = match architecture {
            Architecture::Llama => (None, None, 2048, [Some(1), Some(2)]),
            Architecture::Mistral => (Some(8), None, 131_072, [Some(1), Some(2)]),
            Architecture::Qwen2 => (Some(32), None, 32_768, [None; 2]),
            Architecture::Qwen3 => (Some(32), Some(128), 32_768, [None; 2]),
            Architecture::Gpt2 => unreachable!("GPT-2 has keys of its own"),
        };
        Self { key_heads, head_dim, positions, ids }
    }
}

impl Keys<'_> {
    /// A model with rotary positions.
    pub(super) fn llama(&self, architecture: Architecture) -> Result<Config> {
        let defaults = Defaults::of(architecture);
        let (width, queries) = (self.size("hidden_size", None)?, self.size("num_attention_heads", None)?);
        let heads = self.heads(width, queries, &defaults)?;
        let (vocabulary, blocks) = (self.size("vocab_size", None)?, self.size("num_hidden_layers", None)?);
        let positions = self.size("max_position_embeddings", Some(defaults.positions))?;
        let shape = Shape {
            width,
            blocks,
            heads,
            hidden: self.size("intermediate_size", None)?,
            vocabulary,
            padding: self.padding(vocabulary)?,
            eps: self.positive("rms_norm_eps")?.unwrap_or(1e-6),
            tied: self.flag("tie_word_embeddings", false)?,
            norm: NormKind::Rms,
            positions: Positions::Rotary(self.rope(positions)?),
            feed_forward: FeedForward::SwiGlu,
            bias: self.biases(architecture)?,
            head_norm: architecture == Architecture::Qwen3,
            window: self.window(architecture, blocks)?,
            dropout: Rates { attention: self.rate("attention_dropout", 0.0)?, ..Shape::LLAMA.dropout },
            loss: Shape::LLAMA.loss,
        };
        let (bos, eos) = self.ends(defaults.ids, vocabulary)?;
        Ok(Config { architecture, shape, positions, bos, eos })
    }
    fn heads(&self, width: usize, queries: usize, defaults: &Defaults) -> Result<Heads> {
        let keys = match self.map.get("num_key_value_heads") {
            Some(Value::Null) => queries,
            _ => self.size("num_key_value_heads", Some(defaults.key_heads.unwrap_or(queries)))?,
        };
        let dim = match (self.given("head_dim"), defaults.head_dim) {
            (Some(_), _) => self.size("head_dim", None)?,
            (None, Some(dim)) => dim,
            (None, None) if width.is_multiple_of(queries) => width / queries,
            (None, None) => {
                let wanted =
                    format!("a multiple of the {queries} num_attention_heads where head_dim is not given");
                return Err(self.wrong("hidden_size", &json!(width), &wanted));
            }
        };
        if !queries.is_multiple_of(keys) {
            let wanted = format!("a multiple of the {keys} num_key_value_heads");
            return Err(self.wrong("num_attention_heads", &json!(queries), &wanted));
        }
        Ok(Heads { queries, keys, dim })
    }
    /// The id of padding; a negative one counts from the end of the vocabulary, as `PyTorch` has it.
    fn padding(&self, vocabulary: usize) -> Result<Option<usize>> {
        let wanted = format!("null or a token id below the vocab_size of {vocabulary}");
        self.read("pad_token_id", &wanted, |value| {
            let id = i128::from(value.as_i64()?);
            let id = if id < 0 { id + vocabulary as i128 } else { id };
            usize::try_from(id).ok().filter(|id| *id < vocabulary)
        })
    }
    fn biases(&self, architecture: Architecture) -> Result<Biases> {
        let [attention, mlp] = [self.flag("attention_bias", false)?, self.flag("mlp_bias", false)?];
        let qkv = attention || architecture == Architecture::Qwen2;
        Ok(Biases { qkv, out: attention, mlp })
    }
}

/// The keys that make both versions of `transformers` read this model.
pub(super) fn keys(config: &Config) -> Vec<(&'static str, Value)> {
    let (architecture, shape) = (config.architecture, &config.shape);
    let mut keys = vec![
        ("attention_dropout", json!(shape.dropout.attention)),
        ("head_dim", json!(shape.heads.dim)),
        ("hidden_act", json!("silu")),
        ("hidden_size", json!(shape.width)),
        ("intermediate_size", json!(shape.hidden)),
        ("max_position_embeddings", json!(config.positions)),
        ("num_attention_heads", json!(shape.heads.queries)),
        ("num_hidden_layers", json!(shape.blocks)),
        ("num_key_value_heads", json!(shape.heads.keys)),
        ("pad_token_id", json!(shape.padding)),
        ("rms_norm_eps", json!(shape.eps)),
    ];
    if matches!(architecture, Architecture::Llama | Architecture::Qwen3) {
        keys.push(("attention_bias", json!(shape.bias.qkv)));
    }
    if architecture == Architecture::Llama {
        keys.push(("mlp_bias", json!(shape.bias.mlp)));
    }
    if let Positions::Rotary(rope) = shape.positions {
        keys.extend(rope::keys(rope));
    }
    keys.extend(window::keys(architecture, shape.window, shape.blocks));
    keys
}
