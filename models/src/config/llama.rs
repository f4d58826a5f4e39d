//! Llama, Mistral, Qwen2, Qwen3 and their variants with experts: one decoder with different biases, norms and
//! windows.
use super::architecture::Architecture;
use super::keys::ConfigKeys;
use super::{Config, experts, rope};
use kernels::Heads;
use layers::{Biases, Blocks, FeedForward, NormKind, Pattern, Positions, Rates, Shape, Window};
use parallel::{Error, Result};
use serde_json::{Value, json};

/// Default of `sliding_window`, in both versions of `transformers` and for all models that read the key.
const SIZE: usize = 4096;
/// Default of `max_window_layers`.
const FROM: usize = 28;
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Defaults of `transformers` for missing keys, where they differ between architectures.
struct Defaults {
    key_heads: Option<usize>, // `None`: number of query heads
    head_dim: Option<usize>,  // `None`: width / query heads
    positions: usize,
    ids: [Option<u32>; 2],
    eps: f64,
    base: f64,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let (key_heads, head_dim, positions, ids) = match architecture {
            Architecture::Llama => (None, None, 2048, [Some(1), Some(2)]),
            Architecture::Mistral | Architecture::Mixtral => (Some(8), None, 131_072, [Some(1), Some(2)]),
            Architecture::Qwen2 => (Some(32), None, 32_768, [None; 2]),
            Architecture::Qwen2Moe => (Some(16), None, 32_768, [None; 2]),
            Architecture::Qwen3 => (Some(32), Some(128), 32_768, [None; 2]),
            Architecture::Qwen3Moe => (Some(4), None, 32_768, [None; 2]),
            Architecture::EquipartMoe => (None, None, 2048, [None; 2]),
            Architecture::Gpt2 => unreachable!("GPT-2 has keys of its own"),
        };
        let (eps, base) = if architecture == Architecture::Mixtral { (1e-5, 1e6) } else { (1e-6, 1e4) };
        Self { key_heads, head_dim, positions, ids, eps, base }
    }
}

impl ConfigKeys<'_> {
    /// Reads a model with rotary positions.
    pub(super) fn llama(&self, architecture: Architecture) -> Result<Config> {
        let defaults = Defaults::of(architecture);
        let width = self.size("hidden_size", None)?;
        let heads = self.heads(width, self.size("num_attention_heads", None)?, &defaults)?;
        let (vocabulary, blocks) = (self.size("vocab_size", None)?, self.size("num_hidden_layers", None)?);
        let positions = self.size("max_position_embeddings", Some(defaults.positions))?;
        let (window, from) = self.window(architecture, blocks)?.unzip();
        let dense = self.dense_blocks(architecture, blocks)?;
        let shape = Shape {
            width,
            blocks,
            heads,
            hidden: self.size("intermediate_size", None)?,
            vocabulary,
            padding: self.padding(vocabulary)?,
            eps: self.positive("rms_norm_eps")?.unwrap_or(defaults.eps),
            tied: self.flag("tie_word_embeddings", false)?,
            norm: NormKind::Rms,
            positions: Positions::Rotary(self.rope(positions, defaults.base)?),
            feed_forward: FeedForward::SwiGlu,
            experts: self.experts(architecture, blocks)?,
            bias: self.biases(architecture)?,
            head_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe),
            window,
            pattern: Pattern { dense, whole: (0..from.unwrap_or(0)).collect(), ..Pattern::NONE },
            dropout: Rates { attention: self.rate("attention_dropout", 0.0)?, ..Shape::LLAMA.dropout },
            loss: Shape::LLAMA.loss,
        };
        let (bos, eos) = self.ends(defaults.ids, vocabulary)?;
        let spare_coefficient = self.spare_coefficient(shape.experts, architecture)?;
        Ok(Config { architecture, shape, positions, bos, eos, spare_coefficient, wrapper: None })
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
    /// Returns the id of padding. As in `PyTorch`, a negative id counts from the end of the vocabulary.
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
        let qkv = match architecture {
            Architecture::Qwen2 => true,
            Architecture::Qwen2Moe => self.flag("qkv_bias", true)?,
            _ => attention,
        };
        Ok(Biases { qkv, out: attention, mlp })
    }
    /// Returns the window of a model with this number of blocks and the first block that has it, or `None` if
    /// none has.
    fn window(&self, architecture: Architecture, blocks: usize) -> Result<Option<(Window, usize)>> {
        let window = |size, from| (Window { size, sinks: 0 }, from);
        match architecture {
            Architecture::Llama | Architecture::EquipartMoe | Architecture::Gpt2 => Ok(None),
            Architecture::Mixtral if !self.map.contains_key("sliding_window") => Ok(None),
            Architecture::Qwen2Moe | Architecture::Qwen3Moe => {
                let full = |value: &Value| (*value == json!(vec![FULL; blocks])).then_some(());
                self.read("layer_types", &format!("{blocks} times \"{FULL}\""), full).map(|_| None)
            }
            Architecture::Mistral | Architecture::Mixtral => {
                Ok(self.window_size()?.map(|size| window(size, 0)))
            }
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let used = self.flag("use_sliding_window", false)?;
                let size = self.window_size()?;
                let size = size.filter(|_| used);
                let from = match self.first_sliding(blocks)? {
                    Some(from) if from < blocks && size.is_none() => return Err(self.no_window(used)),
                    Some(from) => from,
                    None => self.count("max_window_layers", FROM)?,
                };
                if size.is_some() && (1..blocks).contains(&from) && blocks > Blocks::MOST {
                    let wanted = format!("at most {} in a model with a window in some blocks", Blocks::MOST);
                    return Err(self.wrong("num_hidden_layers", &json!(blocks), &wanted));
                }
                Ok(size.filter(|_| from < blocks).map(|size| window(size, from)))
            }
        }
    }
    /// Returns the error for `layer_types` that ask for a window the other keys do not give.
    fn no_window(&self, used: bool) -> Error {
        let (key, wanted) = if used {
            ("sliding_window", "a whole number, 1 or more")
        } else {
            ("use_sliding_window", "true")
        };
        let seen = self.map.get(key).unwrap_or(&Value::Bool(false));
        self.wrong(key, seen, &format!("{wanted}, because layer_types has \"{SLIDING}\""))
    }
    /// Returns the size of the window, or `None` if the key is null. A missing key means the default `SIZE`.
    fn window_size(&self) -> Result<Option<usize>> {
        match self.map.get("sliding_window") {
            Some(Value::Null) => Ok(None),
            _ => self.size("sliding_window", Some(SIZE)).map(Some),
        }
    }
    /// Returns the first layer that has the window according to `layer_types`, or the number of layers if
    /// none has; `None` if the key is missing.
    fn first_sliding(&self, blocks: usize) -> Result<Option<usize>> {
        let wanted =
            format!("\"{FULL}\" for the first layers and \"{SLIDING}\" for the others, {blocks} in all");
        self.read("layer_types", &wanted, |value| {
            let types = value.as_array().filter(|types| types.len() == blocks)?;
            let from = types.iter().position(|kind| kind != FULL).unwrap_or(blocks);
            types[from..].iter().all(|kind| kind == SLIDING).then_some(from)
        })
    }
}

/// Returns the keys from which both versions of `transformers` read this model.
pub(super) fn keys(config: &Config) -> Vec<(&'static str, Value)> {
    let &Config { architecture, ref shape, .. } = config;
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
    match architecture {
        Architecture::Mistral | Architecture::Mixtral | Architecture::Qwen2 => {}
        Architecture::Qwen2Moe => keys.push(("qkv_bias", json!(shape.bias.qkv))),
        _ => keys.push(("attention_bias", json!(shape.bias.qkv))),
    }
    if architecture == Architecture::Llama {
        keys.push(("mlp_bias", json!(shape.bias.mlp)));
    }
    if let Positions::Rotary(rope) = shape.positions {
        keys.extend(rope::keys(rope));
    }
    keys.extend(window_keys(architecture, shape));
    keys.extend(experts::keys(architecture, (shape, config.spare_coefficient)));
    keys
}

/// Returns the keys from which both versions of `transformers` give a shape's window to its blocks.
fn window_keys(architecture: Architecture, shape: &Shape) -> Vec<(&'static str, Value)> {
    let size = ("sliding_window", json!(shape.window.map(|w| w.size)));
    match architecture {
        Architecture::Llama | Architecture::EquipartMoe | Architecture::Gpt2 => vec![],
        Architecture::Mistral | Architecture::Mixtral => vec![size],
        Architecture::Qwen2Moe | Architecture::Qwen3Moe => vec![size, ("use_sliding_window", json!(false))],
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let has = |block: usize| shape.block(block).window.is_some();
            let from = (0..shape.blocks).find(|block| has(*block)).unwrap_or(shape.blocks);
            let types: Vec<_> =
                (0..shape.blocks).map(|block| if has(block) { SLIDING } else { FULL }).collect();
            vec![
                size,
                ("layer_types", json!(types)),
                ("max_window_layers", json!(from)),
                ("use_sliding_window", json!(shape.window.is_some())),
            ]
        }
    }
}
