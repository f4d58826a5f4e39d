//! The whole `config.json` of any family, read and written.
use super::{ALL, named, one_of};
use crate::config::{Config, ConfigKeys, Family, MAX_BLOCKS, MAX_ELEMENTS, object, read_text};
use parallel::Result;
use serde_json::{Map, Value, json};
use std::path::Path;
use tensor::dtype::Dtype;
use tensor::quoted::displayed;

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file cannot be read, or as [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self> {
        let (text, origin) = read_text(path, "model")?;
        Self::parse(&text, &origin)
    }
    /// Reads the text of a `config.json`; `origin` names it in messages.
    ///
    /// # Errors
    /// If the text is not a JSON object, a key is missing or has a value that no supported model has, sizes
    /// contradict each other, or an unsupported key might change what the model computes.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let whole = object(text, origin, "model")?;
        let inner = text_within(&whole);
        let wrapper = inner.as_ref().map(|_| displayed(whole["model_type"].as_str().unwrap_or_default()));
        let within = if inner.is_some() { "text_config." } else { "" };
        let keys = ConfigKeys { map: inner.as_ref().unwrap_or(&whole), origin, within };
        let family = keys.family()?;
        family.about().check(&keys)?;
        let config = family.config(&keys)?;
        keys.check_sizes(&config)?;
        Ok(Self { wrapper, ..config })
    }
    /// Returns the text of a `config.json` from which `transformers` 4 and 5 build the same model, in
    /// float32.
    pub fn to_json(&self) -> String {
        self.to_json_in(Dtype::F32)
    }
    /// Returns the same text, for weights of another dtype. A window's sinks, and terms of the loss besides
    /// cross-entropy, have no keys and are not written.
    ///
    /// # Panics
    /// If `transformers` does not support the dtype, or the family lacks a feature of the shape.
    pub fn to_json_in(&self, dtype: Dtype) -> String {
        let dtype = torch_name(dtype).expect("a float of 16 bits or more");
        let eos = match self.eos[..] {
            [] => Value::Null,
            [one] => json!(one),
            _ => json!(self.eos),
        };
        let about = self.family.about();
        let common = [
            ("architectures", json!([about.class])),
            ("bos_token_id", json!(self.bos)),
            ("dtype", json!(dtype)),
            ("eos_token_id", eos),
            ("initializer_range", json!(0.02)),
            ("model_type", json!(about.model_type)),
            ("tie_word_embeddings", json!(self.shape.tied)),
            ("torch_dtype", json!(dtype)),
            ("use_cache", json!(true)),
            ("vocab_size", json!(self.shape.vocabulary)),
        ];
        let keys = common.into_iter().chain(self.family.keys(self));
        let keys: Map<_, _> = keys.map(|(key, value)| (key.to_owned(), value)).collect();
        format!("{:#}\n", Value::Object(keys))
    }
}

/// Returns the keys of the text model inside of a model that is not supported itself, such as one of pictures
/// and text. The outer file says whether embeddings are tied, if the inner one does not.
fn text_within(whole: &Map<String, Value>) -> Option<Map<String, Value>> {
    const TIED: &str = "tie_word_embeddings";
    let is_known = |map: &Map<_, _>| map.get("model_type").and_then(named).is_some();
    let inner = whole.get("text_config")?.as_object().filter(|inner| is_known(inner) && !is_known(whole))?;
    let mut inner = inner.clone();
    if let (false, Some(tied)) = (inner.contains_key(TIED), whole.get(TIED)) {
        inner.insert(TIED.into(), tied.clone());
    }
    Some(inner)
}

/// Returns PyTorch's name of a float dtype.
fn torch_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F64 => Some("float64"),
        Dtype::F32 => Some("float32"),
        Dtype::F16 => Some("float16"),
        Dtype::BF16 => Some("bfloat16"),
        _ => None,
    }
}

impl ConfigKeys<'_> {
    /// Returns the family of this configuration.
    fn family(&self) -> Result<&'static dyn Family> {
        let quoted = ALL.iter().map(|family| format!("\"{}\"", family.about().model_type));
        let wanted = one_of(quoted);
        self.read("model_type", &wanted, named)?.ok_or_else(|| self.missing("model_type", &wanted))
    }
    /// Checks that 64 bits count the bytes of each kind of weight and of the table of positions, so that
    /// later arithmetic on sizes never wraps.
    fn check_sizes(&self, config: &Config) -> Result<()> {
        let (blocks, products) = config.family.products(config);
        for product in products {
            let elements = product.iter().try_fold(1usize, |elements, (_, size)| elements.checked_mul(*size));
            if elements.is_none_or(|elements| elements > MAX_ELEMENTS) {
                let keys: Vec<_> = product.iter().map(|(key, _)| *key).collect();
                let sizes: Vec<_> = product.iter().map(|(_, size)| size.to_string()).collect();
                let wanted = format!("at most {MAX_ELEMENTS} elements");
                return Err(self.value_error_in_words(&keys.join(" × "), &sizes.join(" × "), &wanted));
            }
        }
        if config.shape.blocks > MAX_BLOCKS {
            return Err(self.wrong(blocks, &json!(config.shape.blocks), &format!("at most {MAX_BLOCKS}")));
        }
        Ok(())
    }
}
