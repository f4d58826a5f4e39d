//! Command line: the flags of the commands, and what they load.
pub(crate) mod args;
pub(crate) mod constants;
pub(crate) mod echo;
pub(crate) mod files;
pub(crate) mod loads;
pub(crate) mod pictures;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod requests;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod train;

use crate::terminal::out;
use args::ModelName;
use models::text::Corpus;
use models::tokenizer::Tokenizer;
use models::{Config, Model, TrainableModel, embedded};
use parallel::{Result, bail};
use pictures::PicturesArgs;
use std::path::Path;

/// Loads a text model.
pub(crate) fn model(name: Option<&ModelName>) -> Result<Model> {
    Ok(noted(match name {
        None | Some(ModelName::Embedded) => Model::embedded()?,
        Some(ModelName::Moe) => Model::moe()?,
        Some(ModelName::Folder(folder)) => Model::read(folder)?,
        Some(ModelName::Mlp) => {
            bail!("mlp is a classifier of pictures; name a model of text");
        }
    }))
}

/// Loads a text model or a classifier.
pub(crate) fn learner(name: Option<&ModelName>, pictures: &PicturesArgs) -> Result<TrainableModel> {
    if name == Some(&ModelName::Mlp) {
        return Ok(pictures.fresh(None, 0));
    }
    pictures.unused()?;
    match name {
        Some(ModelName::Folder(folder)) => {
            let learner = TrainableModel::read(folder)?;
            learner.text.iter().for_each(|model| note(&model.config));
            Ok(learner)
        }
        name => Ok(model(name)?.into()),
    }
}

/// Returns the model after printing the note of its config, if there is one.
pub(crate) fn noted(model: Model) -> Model {
    note(&model.config);
    model
}

fn note(config: &Config) {
    if let Some(note) = config.note() {
        out::note(&format!("note: {note}"));
    }
}

pub(crate) fn corpus(file: Option<&Path>, seq: usize, tokenizer: &Tokenizer) -> Result<Corpus> {
    match file {
        Some(file) => Ok(Corpus::read(file, seq, tokenizer)?),
        None => Ok(Corpus::tokenized(embedded::CORPUS, "the embedded text", seq, tokenizer)?),
    }
}

/// Ids for a model without a tokenizer: arbitrary, because the comparison does not depend on them.
pub(crate) fn any_ids(seq: usize, vocabulary: usize) -> Result<Corpus> {
    let below: Vec<u8> =
        embedded::CORPUS.iter().map(|&byte| (usize::from(byte) % vocabulary) as u8).collect();
    Corpus::new(&below, "the embedded text", seq)
}

pub(crate) fn config(file: Option<&Path>) -> Result<Config> {
    let embedded = || Config::parse(embedded::CONFIG, "the embedded default");
    let config = file.map_or_else(embedded, Config::read)?;
    note(&config);
    Ok(config)
}
