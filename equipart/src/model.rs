//! A model to work with: its configuration and where its weights are.
use crate::{Config, Error, Result, embedded, names, tokenizer};
use layers::build::Element;
use layers::{Draw, Random, Values};
use parallel::Stored;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::safetensors::{File, Shards};
use tensor::{Scalar, files};

/// A configuration and a source of weights. Cheap to clone; each rank reads its share.
#[derive(Clone)]
pub struct Model {
    /// The configuration.
    pub config: Config,
    /// Where it comes from, for messages.
    pub origin: String,
    dir: Option<PathBuf>,
    weights: Weights,
}

#[derive(Clone)]
enum Weights {
    Random(Random),
    Stored(Arc<Stored>),
}

impl Model {
    /// The default that is part of the program.
    ///
    /// # Errors
    /// If this build of the program is broken.
    pub fn embedded() -> Result<Self> {
        let origin = "the embedded default";
        let config = Config::parse(embedded::CONFIG, origin)?;
        Self::stored(config, File::from_static(embedded::WEIGHTS, origin)?.into(), None)
    }
    /// A folder in the Hugging Face layout: config.json and model.safetensors, or several files and their index.
    /// Names and shapes of all tensors are checked here; numbers are read by whoever asks for them.
    ///
    /// # Errors
    /// Naming the file, what was seen and what was wanted.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let what = if dir.exists() { "is a file" } else { "does not exist" };
            let wanted = "a model is a folder with config.json and model.safetensors";
            return Err(Error(format!("{} {what}; {wanted}", dir.display())));
        }
        let config = Config::read(&dir.join("config.json"))?;
        Self::stored(config, Shards::open(dir)?, Some(dir.to_owned()))
    }
    fn stored(config: Config, shards: Shards, dir: Option<PathBuf>) -> Result<Self> {
        let (shape, origin) = (&config.shape, shards.path().to_owned());
        let entries = names::entries_in(shape, shards.names());
        let stored = Stored::new(shards, entries, |name| names::is_passed_over(shape, name))?;
        // Version 4 of transformers would pass over such a head, version 5 would use it.
        let (shards, table) = (stored.shards(), names::embedding(stored.entries()));
        if shape.tied && shards.info(names::HEAD).is_some() && !shards.equal(names::HEAD, table) {
            return Err(Error(format!(
                "{origin}: tensor {} differs from {table}, which tie_word_embeddings makes the head; \
                 set that to false in config.json, or remove the tensor",
                names::HEAD
            )));
        }
        Ok(Self { config, origin, dir, weights: Weights::Stored(Arc::new(stored)) })
    }
    /// Untrained weights from a seed.
    pub fn fresh(config: Config, seed: u64) -> Self {
        let origin = format!("fresh weights of seed {seed}");
        Self { config, origin, dir: None, weights: Weights::Random(Random { seed }) }
    }
    /// The weights, as a source for layers.
    pub fn values<E: Scalar>(&self) -> &dyn Values<E> {
        &self.weights
    }
    /// The tensors of its files, if it has any.
    pub fn tensors(&self) -> Option<&Stored> {
        match &self.weights {
            Weights::Random(_) => None,
            Weights::Stored(stored) => Some(stored),
        }
    }
    /// The folder it was read from.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
    /// What is noted in the weights' file.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.tensors()?.shards().metadata()?.get(key).map(String::as_str)
    }
    /// Whether its ids are the bytes of text.
    ///
    /// # Errors
    /// Saying why only ids can be given to it and had from it: its folder has no tokenizer, or another one.
    pub fn reads_text(&self) -> Result<()> {
        const INSTEAD: &str = "give token ids with --prompt-ids or --batch";
        let path = self.dir.as_ref().map(|dir| (dir, dir.join("tokenizer.json")));
        if let Some((dir, _)) = path.as_ref().filter(|(_, path)| !path.exists()) {
            return Err(Error(format!(
                "{} has no tokenizer.json to read text with; {INSTEAD}",
                dir.display()
            )));
        }
        let vocabulary = self.config.shape.vocabulary;
        if vocabulary != 256 {
            let has = format!("this model has a vocabulary of {vocabulary}");
            return Err(Error(format!("text is read as bytes, and {has}; {INSTEAD}")));
        }
        match path {
            Some((_, path)) if !is_of_bytes(&files::read(&path)?) => {
                let has = format!("{} has other tokens", path.display());
                Err(Error(format!("text is read as bytes, and {has}; {INSTEAD}")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a tokenizer.json makes every byte the token of its number.
fn is_of_bytes(text: &[u8]) -> bool {
    let [theirs, ours] = [text, tokenizer::json().as_bytes()].map(serde_json::from_slice::<Value>);
    let (Ok(theirs), Ok(ours)) = (theirs, ours) else { return false };
    let parts = ["/model/vocab", "/model/merges", "/normalizer", "/added_tokens"];
    parts.iter().all(|part| theirs.pointer(part) == ours.pointer(part))
}

impl<E: Scalar> Values<E> for Weights {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> layers::Result<Element<'_, E>> {
        match self {
            Weights::Random(random) => random.of(name, shape, draw),
            Weights::Stored(stored) => stored.of(name, shape, draw),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
