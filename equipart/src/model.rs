//! A model to work with: its configuration and where its weights are.
use crate::{Config, Error, Result, embedded, names};
use layers::build::Element;
use layers::{Draw, Random, Values};
use parallel::Stored;
use std::path::Path;
use std::sync::Arc;
use tensor::Scalar;
use tensor::safetensors::File;

/// A configuration and a source of weights. Cheap to clone; each rank reads its share.
#[derive(Clone)]
pub struct Model {
    /// The configuration.
    pub config: Config,
    /// Where it comes from, for messages.
    pub origin: String,
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
        let file = File::from_static(embedded::WEIGHTS, origin)?;
        Self::stored(config, origin.into(), file)
    }
    /// A folder in the Hugging Face layout: config.json and model.safetensors.
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
        let path = dir.join("model.safetensors");
        let origin = path.display().to_string();
        Self::stored(config, origin, File::open(&path)?)
    }
    fn stored(config: Config, origin: String, file: File) -> Result<Self> {
        let stored = Stored::new(&origin, file, names::entries(&config.shape))?;
        Ok(Self { config, origin, weights: Weights::Stored(Arc::new(stored)) })
    }
    /// Untrained weights from a seed.
    pub fn fresh(config: Config, seed: u64) -> Self {
        let origin = format!("fresh weights of seed {seed}");
        Self { config, origin, weights: Weights::Random(Random { seed }) }
    }
    /// The weights, as a source for layers.
    pub fn values<E: Scalar>(&self) -> &dyn Values<E> {
        &self.weights
    }
    /// What is noted in the weights' file.
    pub fn note(&self, key: &str) -> Option<&str> {
        match &self.weights {
            Weights::Random(_) => None,
            Weights::Stored(stored) => stored.file().metadata().get(key).map(String::as_str),
        }
    }
}

impl<E: Scalar> Values<E> for Weights {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> layers::Result<Element<'_, E>> {
        match self {
            Weights::Random(random) => random.of(name, shape, draw),
            Weights::Stored(stored) => stored.of(name, shape, draw),
        }
    }
}
