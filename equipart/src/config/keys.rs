//! Keys of a configuration: which are read, which must have one value, which do not matter; and values of a kind.
use super::{ConfigError, Keys};
use serde_json::Value;

/// Keys whose values are read.
const READ: &[&str] = &[
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];

/// Keys that change what the model computes, with the values (as JSON) that change nothing.
const FIXED: &[(&str, &[&str])] = &[
    ("add_cross_attention", &["false"]),
    ("architectures", &[r#"["LlamaForCausalLM"]"#]),
    ("attention_bias", &["false"]),
    ("attention_dropout", &["0"]),
    ("hidden_act", &[r#""silu""#, r#""swish""#]),
    ("is_encoder_decoder", &["false"]),
    ("mlp_bias", &["false"]),
    ("model_type", &[r#""llama""#]),
    ("partial_rotary_factor", &["1"]),
    ("pruned_heads", &["{}"]),
    ("quantization_config", &["null"]),
    ("rope_interleaved", &["false"]),
    ("rope_scaling", &["null"]),
    ("sliding_window", &["null"]),
    ("use_sliding_window", &["false"]),
];

/// Keys that change nothing that is computed: metadata, numbers of the making, and how `transformers` runs or
/// generates. Keys that begin with `_` are of this kind too.
const FREE: &[&str] = &[
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
];

/// The keys of `rope_parameters`, but for the base.
const ROPE: &[(&str, &[&str])] =
    &[("partial_rotary_factor", &["1"]), ("rope_type", &[r#""default""#]), ("type", &[r#""default""#])];

impl Keys<'_> {
    /// Whether every key is one that is read, has a value that changes nothing, or cannot change anything.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.given("model_type").is_none() {
            return Err(self.missing("model_type", r#""llama""#));
        }
        self.check_against(FIXED, |key| {
            key.starts_with('_') || [READ, FREE].iter().any(|list| list.contains(&key))
        })
    }
    /// The same for the keys of `rope_parameters`.
    pub(super) fn check_rope(&self) -> Result<(), ConfigError> {
        self.check_against(ROPE, |key| key == "rope_theta")
    }
    fn check_against(
        &self,
        fixed: &[(&str, &[&str])],
        free: impl Fn(&str) -> bool,
    ) -> Result<(), ConfigError> {
        for (key, value) in self.map {
            if value.is_null() || free(key) {
                continue; // null is what a key is where it is left out
            }
            let Some((_, wanted)) = fixed.iter().find(|(name, _)| name == key) else {
                let (origin, key) = (self.origin.into(), format!("{}{key}", self.within));
                return Err(ConfigError::Unknown { origin, key, seen: shown(value) });
            };
            if !wanted.iter().any(|wanted| same(value, wanted)) {
                return Err(self.wrong(key, value, &format!("{}, or left out", wanted.join(" or "))));
            }
        }
        Ok(())
    }
    /// A key's value, unless it is left out or null.
    pub(super) fn given(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }
    /// A whole number of at least 1.
    pub(super) fn size(&self, key: &str, default: Option<usize>) -> Result<usize, ConfigError> {
        const WANTED: &str = "a whole number, 1 or more";
        match (self.given(key), default) {
            (Some(value), _) => match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
                Some(size) if size > 0 => Ok(size),
                _ => Err(self.wrong(key, value, WANTED)),
            },
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.missing(key, WANTED)),
        }
    }
    /// A number above 0, if there is one.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.given(key)
            .map(|value| {
                let number = value.as_f64().filter(|number| *number > 0.0);
                number.ok_or_else(|| self.wrong(key, value, "a number above 0"))
            })
            .transpose()
    }
    /// `true` or `false`, the latter where it is left out.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        self.given(key)
            .map_or(Ok(false), |value| value.as_bool().ok_or_else(|| self.wrong(key, value, "true or false")))
    }
    /// Token ids: one, a list, or none for `null`; the default where the key is left out, if the vocabulary has it.
    pub(super) fn ids(&self, key: &str, default: u32, vocabulary: usize) -> Result<Vec<u32>, ConfigError> {
        let Some(value) = self.map.get(key) else {
            return Ok(if (default as usize) < vocabulary { vec![default] } else { vec![] });
        };
        let id = |value: &Value| {
            let id = value.as_u64().filter(|id| *id < vocabulary as u64);
            id.and_then(|id| u32::try_from(id).ok())
        };
        let ids = match value {
            Value::Null => Some(vec![]),
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| {
            let wanted =
                format!("null, a token id below the vocab_size of {vocabulary}, or a list of such ids");
            self.wrong(key, value, &wanted)
        })
    }
    /// A value that is not wanted.
    pub(super) fn wrong(&self, key: &str, seen: &Value, wanted: &str) -> ConfigError {
        let (origin, key) = (self.origin.into(), format!("{}{key}", self.within));
        ConfigError::Value { origin, key, seen: shown(seen), wanted: wanted.into() }
    }
    fn missing(&self, key: &str, wanted: &str) -> ConfigError {
        let (origin, key) = (self.origin.into(), format!("{}{key}", self.within));
        ConfigError::Missing { origin, key, wanted: wanted.into() }
    }
}

/// Whether a value is this JSON; numbers are compared as numbers, so 0.0 is 0.
fn same(value: &Value, wanted: &str) -> bool {
    match value {
        Value::Number(number) => wanted.parse().is_ok_and(|wanted: f64| number.as_f64() == Some(wanted)),
        _ => shown(value) == wanted,
    }
}

/// A value for a message, cut where it is long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}
