//! Settings of text generation, as version 5 of `transformers` reads them: from `generation_config.json` or,
//! in a folder without that file, from `config.json`. The other file's settings are ignored, including its
//! end-of-text ids.
//!
//! | key | here |
//! |---|---|
//! | `eos_token_id` | ends a text: an id, or a list of ids |
//! | `do_sample` | true if tokens are drawn; if false, the next three have no effect |
//! | `temperature`, `top_k`, `top_p` | as in [`Sampling`]; defaults 1, 50, 1; a `top_k` of 0: all tokens |
//! | `max_new_tokens` | number of tokens to add, if the model has positions for them |
//! | others that change the tokens | not supported, which is noted |
use super::keys::{ConfigKeys, object, read_text, same, whole};
use crate::sampling::Sampling;
use parallel::Result;
use serde_json::{Map, Value};
use std::path::Path;
use tensor::quoted::displayed;

/// Name of the file.
pub(crate) const FILE: &str = "generation_config.json";
/// Default `top_k` of `transformers`.
const TOP_K: usize = 50;

/// Supported keys, besides `eos_token_id`.
const FOLLOWED: &str = "do_sample max_new_tokens temperature top_k top_p";
/// Unsupported keys, with the values (as JSON) that change nothing; `null` never does.
const OTHERS: &str = "\
    bad_words_ids= begin_suppress_tokens=[] constraints= dola_layers= encoder_no_repeat_ngram_size=0 \
    encoder_repetition_penalty=1 exponential_decay_length_penalty= force_words_ids= forced_bos_token_id= \
    forced_eos_token_id= guidance_scale=1 max_length= max_time= min_length=0 min_new_tokens=0 no_repeat_ngram_size=0 \
    num_beam_groups=1 num_beams=1 num_return_sequences=1 penalty_alpha=0 repetition_penalty=1 sequence_bias= \
    stop_strings= suppress_tokens=[] token_healing=false watermarking_config=";
/// The same for keys that only affect sampling.
const OF_DRAWING: &str = "epsilon_cutoff=0 eta_cutoff=0 min_p=0 top_h= typical_p=1";
/// Keys that change nothing without one of the others.
const BESIDE: &str =
    "diversity_penalty early_stopping length_penalty remove_invalid_values renormalize_logits";

/// Settings of a model's text generation, for values that no flag gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Method of choosing the next token.
    pub sampling: Sampling,
    /// Largest number of tokens to add.
    pub max_new: Option<usize>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    others: Vec<(&'static str, Value)>,
    origin: String,
}

/// Splits a list into its keys, each with the text after its equals sign.
fn words(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    list.split(' ').map(|word| word.split_once('=').unwrap_or((word, "")))
}

/// Returns true for a key about generation rather than about the model.
pub(crate) fn is_key(key: &str) -> bool {
    [FOLLOWED, OTHERS, OF_DRAWING, BESIDE].into_iter().flat_map(words).any(|(known, _)| known == key)
}

impl Generation {
    /// Reads the files of a folder. If `draws` is given, it decides whether tokens are drawn, not the files;
    /// the files' temperature is then not validated.
    ///
    /// # Errors
    /// If a file cannot be read, or a supported key has an invalid value.
    pub fn read(folder: &Path, draws: Option<bool>) -> Result<Self> {
        let file = folder.join(FILE);
        let path = if file.exists() { file } else { folder.join("config.json") };
        let (text, origin) = read_text(&path, "generation")?;
        let map = object(&text, &origin, "generation")?;
        ConfigKeys { map: &map, origin: &origin, within: "" }.generation(draws)
    }
    /// Returns settings that choose the likeliest token, until one of these ids.
    pub fn greedy(eos: Vec<u32>) -> Self {
        Self { eos, ..Self::default() }
    }
    /// Returns a note about the unsupported keys, if there are any. `sized` is true if a flag gives the
    /// number of new tokens.
    pub fn note(&self, sized: bool) -> Option<String> {
        let sized = sized || self.max_new.is_some();
        let others = self.others.iter().filter(|(key, _)| *key != "max_length" || !sized);
        let named: Vec<_> =
            others.map(|(key, value)| format!("{key} {}", displayed(&value.to_string()))).collect();
        let (origin, named) = (&self.origin, named.join(", "));
        (!named.is_empty()).then(|| {
            format!(
                "{origin} asks for {named}; equipart does not support this, so transformers may continue \
                 a text differently"
            )
        })
    }
    /// Returns the text of a `generation_config.json` with the generation keys of a folder's `config.json`,
    /// if it has any.
    pub(crate) fn legacy(folder: &Path) -> Option<String> {
        let (text, origin) = read_text(&folder.join("config.json"), "model").ok()?;
        let map = object(&text, &origin, "model").ok()?;
        let is_end = |key: &str| matches!(key, "bos_token_id" | "eos_token_id" | "pad_token_id");
        let said = map.iter().any(|(key, value)| is_key(key) && !value.is_null());
        let kept = |(key, _): &(String, Value)| is_key(key) || is_end(key);
        said.then(|| format!("{:#}\n", Value::Object(map.into_iter().filter(kept).collect::<Map<_, _>>())))
    }
}

impl ConfigKeys<'_> {
    fn generation(&self, draws: Option<bool>) -> Result<Generation> {
        let samples = self.flag("do_sample", false)?;
        let (heats, draws) = (draws.is_none() && samples, draws.unwrap_or(samples));
        let number = |key, counts: bool, wanted, fits: fn(f64) -> bool| {
            self.read(key, wanted, |value| value.as_f64().filter(|number| !counts || fits(*number)))
        };
        let temperature = number("temperature", heats, "a number above 0", |t| t > 0.0)?;
        let top_k = number("top_k", draws, "a whole number, 0 or more", |k| k >= 0.0 && k.fract() == 0.0)?;
        let top_p = number("top_p", draws, "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
        let drawn = || Sampling {
            temperature: Some(temperature.unwrap_or(1.0)),
            top_k: top_k.map(|k| k as usize).or(samples.then_some(TOP_K)).filter(|k| *k > 0),
            // a share of 0 keeps the likeliest token
            top_p: top_p.filter(|p| *p < 1.0).map(|p| p.max(f64::MIN_POSITIVE)),
            seed: 0,
        };
        let changes =
            |(key, same_as): &(&str, &str)| self.given(key).is_some_and(|value| !same(value, same_as));
        let others = words(OTHERS).chain(words(OF_DRAWING).filter(|_| draws)).filter(changes);
        Ok(Generation {
            sampling: if draws { drawn() } else { Sampling::default() },
            max_new: self.read("max_new_tokens", "a whole number, 1 or more", |value| {
                whole(value).filter(|tokens| *tokens > 0)
            })?,
            eos: self.ids("eos_token_id", None)?,
            others: others.map(|(key, _)| (key, self.map[key].clone())).collect(),
            origin: self.origin.to_owned(),
        })
    }
}
