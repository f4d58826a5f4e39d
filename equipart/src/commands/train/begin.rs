//! What a run begins with: a fresh model, one from files, or that of the run that it resumes; and what it learns.
use super::data::TrainData;
use super::flags::TrainArgs;
use super::settings::Settings;
use super::state::State;
use crate::cli::args::{self, ModelName};
use crate::cli::{config, corpus, model, noted, out, pictures};
use models::tokenizer::TokenizerSource;
use models::{Config, Learner, Model, ids};
use parallel::{Result, bail};

/// The model that a run begins with, and what it learns.
pub(super) fn begin_with(a: &TrainArgs, resume: Option<&State>) -> Result<(Learner, TrainData)> {
    if resume.is_some() && (a.model.is_some() || a.config.is_some()) {
        bail!("--resume goes on with its own model; leave out --model and --config");
    }
    let begun = resume.map(|state| state.model.clone());
    let of_pictures =
        a.model == Some(ModelName::Mlp) || begun.as_ref().is_some_and(|begun| begun.text.is_none());
    a.unused(of_pictures)?;
    if of_pictures {
        let digits = pictures::digits(a.data.as_deref())?;
        let fresh = || a.pictures.fresh(Some(&digits), a.seed.unwrap_or(0));
        return Ok((begun.unwrap_or_else(fresh), TrainData::Digits(digits)));
    }
    let seq = resume.map(|s| s.settings.seq).or(a.seq).unwrap_or(args::SEQ);
    let model = match (begun, &a.model, &a.config) {
        (Some(Learner { text: Some(begun), .. }), ..) => noted(begun),
        (_, Some(_), _) => model(a.model.as_ref())?,
        (_, None, file) => {
            let mut model = Model::fresh(config(file.as_deref())?, a.seed.unwrap_or(0));
            let beside = file.as_deref().and_then(TokenizerSource::beside);
            let bytes = a.batch.is_none().then_some(TokenizerSource::Bytes); // what it is about to learn
            model.tokens = beside.or(bytes).unwrap_or(model.tokens);
            model
        }
    };
    let Config { shape, positions, .. } = &model.config;
    let learnt = match &a.batch {
        Some(file) => TrainData::Ids(ids::read(file, shape.vocabulary, *positions)?),
        None => TrainData::Text(corpus(a.data.as_deref(), seq, &model.tokenizer()?)?),
    };
    Ok((model.into(), learnt))
}

/// The settings of a resumed run; where they end at another step than before, it says so.
pub(super) fn noted_end(state: &State, settings: Settings) -> Settings {
    let (steps, begun, done) = (settings.steps, state.settings.steps, state.steps());
    if steps != begun && steps > done {
        out::note(&format!(
            "note: this run was begun with {begun} steps and now ends at {steps}; its learning rate follows the schedule of \
             {steps}: {:.3e} in step {}",
            settings.schedule().at(done),
            done + 1
        ));
    }
    settings
}
