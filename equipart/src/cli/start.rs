//! Start of a training run: its initial model, and what it learns.
use super::args::ModelName;
use super::pictures::{PicturesArgs, digits};
use super::{config, corpus, model, noted};
use models::text::{Corpus, documents};
use models::tokenizer::TokenizerSource;
use models::{Config, Model, TrainableModel, ids};
use parallel::{Result, bail};
use run::train::data::{DataFiles, TrainData};
use std::path::{Path, PathBuf};

/// Start of a training run, as flags name it.
pub(crate) struct RunStart<'a> {
    pub(crate) model: Option<&'a ModelName>,
    pub(crate) config: Option<&'a Path>,
    /// The model of the run to resume.
    pub(crate) begun: Option<TrainableModel>,
    pub(crate) pictures: &'a PicturesArgs,
    pub(crate) files: &'a DataFiles,
    /// Seed of fresh weights.
    pub(crate) seed: u64,
    /// Tokens of a sequence of a text.
    pub(crate) seq: usize,
}

impl RunStart<'_> {
    /// Returns a classifier and its pictures.
    ///
    /// # Errors
    /// If the pictures cannot be read.
    pub(crate) fn pictures(self) -> Result<(TrainableModel, TrainData)> {
        let data = &self.files.data;
        if data.len() > 1 {
            bail!("--data is given {} times; --model mlp reads one folder", data.len());
        }
        let digits = digits(data.first().map(PathBuf::as_path))?;
        let fresh = || self.pictures.fresh(Some(&digits), self.seed);
        Ok((self.begun.unwrap_or_else(fresh), TrainData::Digits(digits)))
    }
    /// Returns a model of text, and its text or ids.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn text(self) -> Result<(TrainableModel, TrainData)> {
        let DataFiles { batch, data, field } = self.files;
        let model = match (self.begun, self.model, self.config) {
            (Some(TrainableModel { text: Some(begun), .. }), ..) => noted(begun),
            (_, Some(_), _) => model(self.model)?,
            (_, None, file) => {
                let mut model = Model::fresh(config(file)?, self.seed);
                let beside = file.and_then(TokenizerSource::beside);
                // the bytes it is about to learn
                let bytes = batch.is_none().then_some(TokenizerSource::Bytes);
                model.tokens = beside.or(bytes).unwrap_or(model.tokens);
                model
            }
        };
        let Config { shape, positions, .. } = &model.config;
        let learnt = match batch {
            Some(file) => TrainData::Ids(ids::read(file, shape.vocabulary, *positions)?),
            None if data.is_empty() => TrainData::Text(corpus(None, self.seq, &model.tokenizer()?)?),
            None => {
                let end = model.config.eos.iter().copied().find(|id| (*id as usize) < shape.vocabulary);
                let texts = documents::read(data, field.as_deref(), end.is_none())?;
                TrainData::Text(Corpus::joined(&texts, (self.seq, end), &model.tokenizer()?)?)
            }
        };
        Ok((model.into(), learnt))
    }
}
