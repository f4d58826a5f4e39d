//! What a run trains: a model of text, or a classifier of pictures.
use crate::{Classifier, Model, names};
use layers::{Design, Values};
use parallel::{Entry, Result};
use std::path::Path;
use tensor::Scalar;

/// A model and where its weights are.
#[derive(Clone)]
pub enum Learner {
    /// Ids to ids.
    Text(Model),
    /// Pictures to classes.
    Pictures(Classifier),
}

impl From<Model> for Learner {
    fn from(model: Model) -> Self {
        Self::Text(model)
    }
}

impl Learner {
    /// Reads a folder.
    ///
    /// # Errors
    /// If it holds neither.
    pub fn read(dir: &Path) -> Result<Self> {
        Ok(match Classifier::read(dir)? {
            Some(classifier) => Self::Pictures(classifier),
            None => Self::Text(Model::read(dir)?),
        })
    }
    /// What it is built as.
    pub fn design(&self) -> Design {
        match self {
            Self::Text(model) => model.config.shape.into(),
            Self::Pictures(Classifier { sizes, .. }) => Design::Classifier { sizes: sizes.clone() },
        }
    }
    /// How many tokens a sequence may have.
    pub fn positions(&self) -> usize {
        if let Self::Text(model) = self { model.config.positions } else { 1 }
    }
    /// Where it comes from, for messages.
    pub fn origin(&self) -> &str {
        match self {
            Self::Text(model) => &model.origin,
            Self::Pictures(classifier) => &classifier.origin,
        }
    }
    /// The weights, as a source for layers.
    pub fn values<E: Scalar>(&self) -> &(dyn Values<E> + Sync) {
        match self {
            Self::Text(model) => model.values(),
            Self::Pictures(classifier) => &classifier.weights,
        }
    }
    /// What is noted in the weights' file.
    pub fn note(&self, key: &str) -> Option<&str> {
        match self {
            Self::Text(model) => model.note(key),
            Self::Pictures(classifier) => classifier.weights.note(key),
        }
    }
    /// Every tensor of its file, in program order.
    pub fn entries(&self) -> Vec<Entry> {
        match self {
            Self::Text(model) => names::entries(&model.config.shape),
            Self::Pictures(Classifier { sizes, .. }) => crate::classifier::entries(sizes),
        }
    }
    /// Its config.json.
    pub fn to_json(&self) -> String {
        match self {
            Self::Text(model) => model.config.to_json(),
            Self::Pictures(classifier) => classifier.to_json(),
        }
    }
}
