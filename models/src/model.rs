//! A model: its configuration and the source of its weights.
use crate::config::Generation;
use crate::tokenizer::{Tokenizer, TokenizerSource};
use crate::{Config, embedded, names};
use ops::{Draw, EvenValues, ParamValues, RandomValues, ValueSource};
use parallel::{Result, Stored, bail};
use std::path::Path;
use std::sync::Arc;
use tensor::Scalar;
use tensor::safetensors::File;

/// A configuration and a source of weights. Cheap to clone; each rank reads its local part.
#[derive(Clone)]
pub struct Model {
    /// The configuration.
    pub config: Config,
    /// Origin of the model, for messages.
    pub origin: String,
    /// Source of its tokenizer.
    pub tokens: TokenizerSource,
    pub(crate) weights: WeightsSource,
}

/// Source of weights.
#[derive(Clone)]
pub(crate) enum WeightsSource {
    Random(RandomValues),
    Even,
    Stored(Arc<Stored>),
}

impl Model {
    /// Returns the default model, which is embedded in the program.
    ///
    /// # Errors
    /// If this build of the program is broken.
    pub fn embedded() -> Result<Self> {
        Self::of_program("the embedded default", embedded::CONFIG, embedded::WEIGHTS)
    }
    /// Returns the default's sister with experts, which is embedded in the program, too.
    ///
    /// # Errors
    /// If this build of the program is broken.
    pub fn moe() -> Result<Self> {
        Self::of_program("the embedded model with experts", embedded::MOE_CONFIG, embedded::MOE_WEIGHTS)
    }
    fn of_program(origin: &str, config: &str, weights: &'static [u8]) -> Result<Self> {
        let config = Config::parse(config, origin)?;
        Self::stored(config, File::from_static(weights, origin)?, TokenizerSource::Bytes)
    }
    /// Reads a folder in the Hugging Face layout: config.json and model.safetensors, or several files and
    /// their index. Checks names and shapes of all tensors; elements are read later, on demand.
    ///
    /// # Errors
    /// Names the file, the value seen and the value wanted.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let what = if dir.exists() { "is a file" } else { "does not exist" };
            let wanted = "a model is a folder with config.json and model.safetensors";
            bail!("{} {what}; {wanted}", dir.display());
        }
        let config = Config::read(&dir.join("config.json"))?;
        Self::stored(config, File::open_folder(dir)?, TokenizerSource::Folder(dir.to_owned()))
    }
    fn stored(config: Config, shards: File, tokens: TokenizerSource) -> Result<Self> {
        let origin = shards.path().to_owned();
        let entries = names::entries_in(&config, shards.names());
        let stored = Stored::new(shards, entries, |name| names::is_ignored(&config, name))?;
        // Version 4 of transformers would ignore such a head, version 5 would use it.
        let shards = stored.shards();
        let table = names::embedding(stored.entries());
        if config.shape.tied && shards.info(names::HEAD).is_some() && !shards.equal(names::HEAD, table) {
            bail!(
                "{origin}: tensor {} differs from {table}, but tie_word_embeddings ties them; set it to \
                 false in config.json, or remove the tensor",
                names::HEAD
            );
        }
        Ok(Self { config, origin, tokens, weights: WeightsSource::Stored(Arc::new(stored)) })
    }
    /// Returns a model with untrained weights from a seed. If there are 256 ids, they are bytes.
    pub fn fresh(config: Config, seed: u64) -> Self {
        let origin = format!("fresh weights of seed {seed}");
        let tokens =
            if config.shape.vocabulary == 256 { TokenizerSource::Bytes } else { TokenizerSource::Unknown };
        Self { config, origin, tokens, weights: WeightsSource::Random(RandomValues { seed }) }
    }
    /// Returns a model with weights that are made fast, for measuring time: [`EvenValues`]. Its ids have no
    /// text.
    pub fn even(config: Config) -> Self {
        let origin = "weights for measuring time".into();
        Self { config, origin, tokens: TokenizerSource::Unknown, weights: WeightsSource::Even }
    }
    /// Returns the weights, as a source for layers.
    pub fn values<E: Scalar>(&self) -> &(dyn ValueSource<E> + Sync) {
        &self.weights
    }
    /// Returns the tensors of its files, if it has any.
    pub fn tensors(&self) -> Option<&Stored> {
        self.weights.stored()
    }
    /// Returns the settings of text generation: those of its folder, or greedy without a folder. If `draws`
    /// is given, it decides whether tokens are drawn, not the folder.
    ///
    /// # Errors
    /// As [`Generation::read`].
    pub fn generation(&self, draws: Option<bool>) -> Result<Generation> {
        match &self.tokens {
            TokenizerSource::Folder(folder) => Generation::read(folder, draws),
            _ => Ok(Generation::greedy(self.config.eos.clone())),
        }
    }
    /// Returns the tokenizer of its ids.
    ///
    /// # Errors
    /// If the folder has no tokenizer.json, or one that cannot be read, or one with ids that the model does
    /// not have. The model then takes and returns ids only.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        self.tokens.read(self.config.shape.vocabulary)
    }
}

impl WeightsSource {
    pub(crate) fn stored(&self) -> Option<&Stored> {
        if let WeightsSource::Stored(stored) = self { Some(stored) } else { None }
    }
    pub(crate) fn note(&self, key: &str) -> Option<&str> {
        self.stored()?.shards().metadata().get(key).map(String::as_str)
    }
}

impl<E: Scalar> ValueSource<E> for WeightsSource {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, E>> {
        match self {
            WeightsSource::Random(random) => random.of(name, shape, draw),
            WeightsSource::Even => EvenValues.of(name, shape, draw),
            WeightsSource::Stored(stored) => stored.of(name, shape, draw),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
