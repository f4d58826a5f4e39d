//! A family of models: all that is its own, and the keys that files of every family may have.
//!
//! Adding a family is a file in `families/`, which implements [`Family`] or chooses the parts of a decoder,
//! and its line in `families.rs`. No other code asks for the family of a model.
use super::keys::ConfigKeys;
use super::{Config, generation};
use layers::Shape;
use parallel::{Entry, Result};
use serde_json::{Value, json};
use std::fmt::{Debug, Formatter};

/// Keys whose values are read for every family, separated by spaces.
const READ: &str = "architectures bos_token_id eos_token_id model_type tie_word_embeddings vocab_size";
/// Keys that change what every family's model computes, or would if `transformers` read them; each with the
/// values (as JSON, without blanks) that change nothing.
const FIXED: &str =
    "add_cross_attention=false is_encoder_decoder=false pruned_heads={} quantization_config=null";
/// Keys that do not change the computation: metadata, settings of initialization and training, and options of
/// running `transformers`. Keys that begin with `_`, and those of [generation](super::generation), are free
/// too.
const FREE: &str = "\
    attn_implementation auto_map cache_implementation chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id dtype \
    finetuning_task gradient_checkpointing id2label initializer_range is_decoder label2id max_sequence_length \
    name_or_path num_labels output_attentions output_hidden_states output_past output_router_logits output_scores \
    prefix pretraining_tp problem_type return_dict return_dict_in_generate sep_token_id task_specific_params \
    tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers.js_config \
    transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache";

/// A key of a `config.json`, and its value.
pub(crate) type KeyValue = (&'static str, Value);
/// Key of the number of blocks; and lists of (key, size), each with a number of elements as its product.
pub(crate) type Products = (&'static str, Vec<Vec<(&'static str, usize)>>);

/// Names of a family in files, and the keys that its files may have besides those of all families.
pub struct FamilyInfo {
    /// The `model_type` of a `config.json`.
    pub model_type: &'static str,
    /// Entry of `architectures` in a `config.json`: the class in `transformers`.
    pub class: &'static str,
    /// Lists of keys whose values are read, or do not matter, separated by spaces.
    pub read: Vec<&'static str>,
    /// Lists of keys with the values that change nothing.
    pub fixed: Vec<&'static str>,
}

impl FamilyInfo {
    /// Checks that every key is read, does not matter, or has a value that changes nothing.
    pub(crate) fn check(&self, keys: &ConfigKeys<'_>) -> Result<()> {
        let class = json!([self.class]);
        let wanted = format!("{class}, or left out");
        keys.read("architectures", &wanted, |value| (*value == class).then_some(()))?;
        let read = [&[READ, FREE], &self.read[..]].concat();
        keys.check_against(&[&[FIXED], &self.fixed[..]].concat(), |key| {
            key.starts_with('_')
                || generation::is_key(key)
                || read.iter().any(|list| list.split(' ').any(|word| word == key && !word.is_empty()))
        })
    }
}

/// A family of models, with its own names of configuration keys and tensors.
pub trait Family: Sync {
    /// Returns the names of the family, and of its keys.
    fn about(&self) -> FamilyInfo;
    /// Reads a configuration. Sizes are checked later, by [`products`](Self::products).
    ///
    /// # Errors
    /// If a key is missing, or has a value that no supported model of the family has.
    fn config(&'static self, keys: &ConfigKeys<'_>) -> Result<Config>;
    /// Returns the keys from which both versions of `transformers` read this model, besides those of all
    /// families.
    fn keys(&self, config: &Config) -> Vec<KeyValue>;
    /// Returns the numbers of elements of each kind of weight and of the table of positions, as products of
    /// keys.
    fn products(&self, config: &Config) -> Products;
    /// Returns every tensor of a file in the Hugging Face layout, in the program order of our parameters.
    fn entries(&self, shape: &Shape) -> Vec<Entry>;
    /// Renames the entries of a model to the names that a file has, in a layout that differs from the usual
    /// one.
    fn rename(&self, entries: &mut [Entry], shape: &Shape, names: &[&str]);
    /// Returns true if a file may hold a tensor of this name that is no parameter of the model: a mask or
    /// frequencies, which older versions of `transformers` wrote and no version reads, or a part that is left
    /// out.
    fn is_spare(&self, shape: &Shape, name: &str) -> bool;
    /// Returns the family that a model joins if it is given experts; `None` if no family has such models.
    fn upcycled(&self) -> Option<&'static dyn Family>;
}

impl Debug for dyn Family {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.about().model_type)
    }
}
impl PartialEq for dyn Family {
    fn eq(&self, other: &Self) -> bool {
        self.about().model_type == other.about().model_type
    }
}
