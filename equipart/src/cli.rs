//! The command line: what each command takes, and how its results are shown.
pub(crate) mod args;
pub(crate) mod echo;
pub(crate) mod out;
pub(crate) mod pictures;
pub(crate) mod processes;
pub(crate) mod show;
pub(crate) mod watch;

use args::ModelName;
use models::text::Corpus;
use models::tokenizer::Tokenizer;
use models::{Config, Learner, Model, embedded};
use parallel::{Error, Result, bail};
use pictures::PicturesArgs;
use std::path::Path;
use tensor::quoted::escaped;

/// Flags of a command, with the work that they ask for.
pub(crate) trait Run {
    /// True if its ranks may be processes, one each.
    const BY_PROCESSES: bool = false;

    /// Does it, showing lines of JSON or what people read. False where it compared something, and found a difference.
    ///
    /// # Errors
    /// One sentence on what is wrong.
    fn run(self, json: bool) -> Result<bool>;
}

/// Says what went wrong: a sentence, on one line whatever names are in it, and, where ranks failed, their last calls.
pub(crate) fn tell(Error { why, calls, .. }: &Error) {
    out::failure(&format!("error: {}", echo::shown(&escaped(why), &arguments())));
    if let Some(calls) = calls {
        out::failure(&format!("\n{calls}"));
    }
}

/// The arguments of this process, as far as they are text.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// A model of text.
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

/// A model of text, or a classifier.
pub(crate) fn learner(name: Option<&ModelName>, pictures: &PicturesArgs) -> Result<Learner> {
    if name == Some(&ModelName::Mlp) {
        return Ok(pictures.fresh(None, 0));
    }
    pictures.unused()?;
    match name {
        Some(ModelName::Folder(folder)) => {
            let learner = Learner::read(folder)?;
            learner.text.iter().for_each(|model| note(&model.config));
            Ok(learner)
        }
        name => Ok(model(name)?.into()),
    }
}

/// The model; what is odd about it is said.
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

/// Ids for a model that reads no text: which ones is nothing to what is compared.
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
