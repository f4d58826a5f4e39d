//! A Llama model's `config.json`, as Hugging Face `transformers` (4 and 5) reads and writes it.
//!
//! A key that would change what the model computes, and is not supported, is refused by name; one that could not
//! (a version, a path, a setting of text generation) is passed over. Keys left out have the values that
//! `transformers` gives them. Nothing is allocated here: sizes that no machine could hold are refused first.
use kernels::Heads;
use layers::Shape;
use serde_json::{Map, Value, json};
use std::path::Path;

mod keys;

/// The most elements that one kind of weight may have, over all blocks: 2^40.
pub const MAX_ELEMENTS: usize = 1 << 40;
/// The most blocks that a model may have.
pub const MAX_BLOCKS: usize = 10_000;

/// A Llama model: its sizes, and what is not a size.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What its parameters are.
    pub shape: Shape,
    /// How many tokens a sequence may have (`max_position_embeddings`).
    pub positions: usize,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text; most models have none or one.
    pub eos: Vec<u32>,
}

/// Why a configuration is none, or not a supported one: one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] tensor::files::Error),
    /// Not a JSON object.
    #[error("{origin} is no model configuration: {why}")]
    Json {
        /// The file.
        origin: String,
        /// What is wrong with it.
        why: String,
    },
    /// A key that must be there.
    #[error("{origin} has no {key}; it must be {wanted}")]
    Missing {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// The value wanted.
        wanted: String,
    },
    /// A value that no model has, or no supported one.
    #[error("{origin}: {key} is {seen}; it must be {wanted}")]
    Value {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// The value seen.
        seen: String,
        /// The value wanted.
        wanted: String,
    },
    /// A key that might change what the model computes.
    #[error(
        "{origin}: {key} is {seen}, a key that is not known here; remove it if the model computes the same without"
    )]
    Unknown {
        /// The file.
        origin: String,
        /// The key.
        key: String,
        /// Its value.
        seen: String,
    },
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let (bytes, origin) = (tensor::files::read(path)?, path.display().to_string());
        let text = String::from_utf8(bytes).map_err(|why| {
            let at = why.utf8_error().valid_up_to();
            ConfigError::Json { origin: origin.clone(), why: format!("byte {at} is not UTF-8 text") }
        })?;
        Self::parse(&text, &origin)
    }
    /// Reads the text of a `config.json`; `origin` names it in messages.
    ///
    /// # Errors
    /// If it is no JSON object, if a key is missing or has a value that no supported model has, if sizes contradict
    /// each other, or if a key might change what the model computes and is not supported.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let json = |why: String| ConfigError::Json { origin: origin.into(), why };
        let value: Value = serde_json::from_str(text).map_err(|why| json(why.to_string()))?;
        let Value::Object(map) = value else {
            return Err(json("it must be an object in braces".into()));
        };
        let keys = Keys { map: &map, origin, within: "" };
        keys.check()?;
        let config = keys.config()?;
        keys.check_sizes(&config)?;
        Ok(config)
    }
    /// The text of a `config.json` from which `transformers` 4 and 5 make the same model, in float32.
    pub fn to_json(&self) -> String {
        let Shape { width, blocks, heads, hidden, vocabulary, rope, eps, tied } = self.shape;
        let eos = match self.eos[..] {
            [] => Value::Null,
            [one] => json!(one),
            _ => json!(self.eos),
        };
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos,
            "eos_token_id": eos,
            "head_dim": heads.dim,
            "hidden_act": "silu",
            "hidden_size": width,
            "initializer_range": 0.02,
            "intermediate_size": hidden,
            "max_position_embeddings": self.positions,
            "mlp_bias": false,
            "model_type": "llama",
            "num_attention_heads": heads.queries,
            "num_hidden_layers": blocks,
            "num_key_value_heads": heads.keys,
            "rms_norm_eps": eps,
            "rope_parameters": { "rope_theta": rope, "rope_type": "default" },
            "rope_theta": rope,
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "use_cache": true,
            "vocab_size": vocabulary,
        });
        format!("{config:#}\n")
    }
}

/// The keys of an object, and where it came from.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    origin: &'a str,
    within: &'a str, // "" or the path of an inner object, with its dot
}

impl Keys<'_> {
    fn config(&self) -> Result<Config, ConfigError> {
        let (width, queries) = (self.size("hidden_size", None)?, self.size("num_attention_heads", None)?);
        let keys = self.size("num_key_value_heads", Some(queries))?;
        let dim = match self.given("head_dim") {
            Some(_) => self.size("head_dim", None)?,
            None if width.is_multiple_of(queries) => width / queries,
            None => {
                let wanted =
                    format!("a multiple of the {queries} num_attention_heads where head_dim is not given");
                return Err(self.wrong("hidden_size", &json!(width), &wanted));
            }
        };
        let vocabulary = self.size("vocab_size", None)?;
        let shape = Shape {
            width,
            blocks: self.size("num_hidden_layers", None)?,
            heads: Heads { queries, keys, dim },
            hidden: self.size("intermediate_size", None)?,
            vocabulary,
            rope: self.rope()?,
            eps: self.positive("rms_norm_eps")?.unwrap_or(1e-6),
            tied: self.flag("tie_word_embeddings")?,
        };
        let positions = self.size("max_position_embeddings", Some(2048))?;
        let (bos, eos) = (self.ids("bos_token_id", 1, vocabulary)?, self.ids("eos_token_id", 2, vocabulary)?);
        if bos.len() > 1 {
            return Err(self.wrong("bos_token_id", &json!(bos), "one token id or null"));
        }
        Ok(Config { shape, positions, bos: bos.first().copied(), eos })
    }
    /// The base of the rotary embedding, from where version 4 has it or from where version 5 does.
    fn rope(&self) -> Result<f64, ConfigError> {
        let old = self.positive("rope_theta")?;
        let Some(inner) = self.given("rope_parameters") else { return Ok(old.unwrap_or(1e4)) };
        let Value::Object(map) = inner else {
            return Err(self.wrong("rope_parameters", inner, "an object in braces"));
        };
        let inner = Keys { map, origin: self.origin, within: "rope_parameters." };
        inner.check_rope()?;
        let new = inner.positive("rope_theta")?;
        match (old, new) {
            (Some(old), Some(new)) if old.to_bits() != new.to_bits() => {
                Err(inner.wrong("rope_theta", &json!(new), &format!("{old}, as rope_theta is")))
            }
            _ => Ok(new.or(old).unwrap_or(1e4)),
        }
    }
    /// Sizes that contradict each other, or that no machine could hold.
    fn check_sizes(&self, config: &Config) -> Result<(), ConfigError> {
        let Shape { width, blocks, heads: Heads { queries, keys, dim }, hidden, vocabulary, .. } =
            config.shape;
        if !queries.is_multiple_of(keys) {
            let wanted = format!("a multiple of the {keys} num_key_value_heads");
            return Err(self.wrong("num_attention_heads", &json!(queries), &wanted));
        }
        let products: [(&str, &[usize]); 6] = [
            ("vocab_size × hidden_size", &[vocabulary, width]),
            ("num_hidden_layers × hidden_size", &[blocks, width]),
            (
                "num_hidden_layers × hidden_size × num_attention_heads × head_dim",
                &[blocks, width, queries, dim],
            ),
            ("num_hidden_layers × hidden_size × num_key_value_heads × head_dim", &[blocks, width, keys, dim]),
            ("num_hidden_layers × hidden_size × intermediate_size", &[blocks, width, hidden]),
            ("max_position_embeddings × head_dim", &[config.positions, dim]),
        ];
        for (key, sizes) in products {
            let product = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
            if product.is_none_or(|product| product > MAX_ELEMENTS) {
                let seen = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
                let (origin, key) = (self.origin.into(), key.into());
                let wanted = format!("at most {MAX_ELEMENTS} elements");
                return Err(ConfigError::Value { origin, key, seen, wanted });
            }
        }
        if blocks > MAX_BLOCKS {
            return Err(self.wrong("num_hidden_layers", &json!(blocks), &format!("at most {MAX_BLOCKS}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
