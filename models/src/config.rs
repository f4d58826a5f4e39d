//! A model's `config.json`, as Hugging Face `transformers` (4 and 5) reads and writes it.
//!
//! A key that would change what the model computes, and is not supported, is refused by name. A key that
//! could not (a version, a path, a setting of text generation) is ignored. Missing keys take the defaults of
//! `transformers`, except sizes that every file has. Nothing is allocated here. Sizes with an uncountable
//! number of bytes are refused.
//!
//! | file | holds |
//! |---|---|
//! | `family.rs` | all that is a family's own; the keys that files of every family may have |
//! | `keys.rs` | typed values of keys, and errors about them |
//! | `generation.rs` | settings of text generation |
use layers::Shape;
use parallel::{Result, bail};
use tensor::quoted::displayed;

mod family;
mod generation;
mod keys;

pub use family::{Family, FamilyInfo};
pub(crate) use family::{KeyValue, Products};
pub(crate) use generation::FILE as GENERATION;
pub use generation::Generation;
pub(crate) use keys::{ConfigKeys, object, read_text, whole};

/// Largest number of elements of one kind of weight, over all blocks: 2^62. The bytes of more f32 elements do
/// not fit in 64 bits.
pub const MAX_ELEMENTS: usize = 1 << 62;
/// Largest number of blocks of a model.
pub const MAX_BLOCKS: usize = 10_000;
/// Largest number of experts of a block.
pub const MAX_EXPERTS: usize = 4096;

/// Configuration of a model: its shape, and its metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Family, which determines the names of keys and tensors.
    pub family: &'static dyn Family,
    /// Shape of the model; the family supports all of it.
    pub shape: Shape,
    /// Largest number of tokens of a sequence (`max_position_embeddings`, `n_positions`).
    pub positions: usize,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text; most models have none or one.
    pub eos: Vec<u32>,
    /// The file's `router_aux_loss_coef`, if training does not add it because `output_router_logits` is
    /// false; else 0.
    pub spare_coefficient: f64,
    /// The `model_type` of the file, if this is the text model inside of another, such as one of pictures and
    /// text.
    pub wrapper: Option<String>,
}

impl Config {
    /// Checks that texts of the model do not depend on the texts beside them.
    ///
    /// # Errors
    /// Names what makes them.
    pub fn generates(&self) -> Result<()> {
        if self.shape.experts.is_some_and(|experts| experts.by_experts) {
            bail!(
                "experts that choose tokens choose among the tokens of all texts, including later ones; \
                 generating needs a model whose tokens choose experts"
            );
        }
        if let Some(capacity) = self.shape.experts.and_then(|experts| experts.capacity) {
            bail!(
                "a capacity of {capacity} drops tokens depending on the choices of others, so a text would \
                 depend on the texts beside it; generating needs a model whose experts drop none"
            );
        }
        Ok(())
    }
    /// Returns a note about the parts of a larger model that are left out, or about tokens that begin or end
    /// a text but are not in the vocabulary, if there are any.
    pub fn note(&self) -> Option<String> {
        if let Some(wrapper) = &self.wrapper {
            return Some(format!("only the text model of this {wrapper} model is meant (text_config)"));
        }
        let ids = self.bos.iter().map(|id| ("bos", id)).chain(self.eos.iter().map(|id| ("eos", id)));
        let beyond = ids.filter(|(_, id)| **id as usize >= self.shape.vocabulary);
        let named: Vec<_> = beyond.map(|(key, id)| format!("{key}_token_id {id}")).collect();
        let vocabulary = self.shape.vocabulary;
        (!named.is_empty()).then(|| {
            let named = displayed(&named.join(", "));
            format!("the vocabulary of {vocabulary} has no {named} of config.json; no text can have it")
        })
    }
}

#[cfg(test)]
mod tests;
