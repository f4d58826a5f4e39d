//! Command line: the flags of the commands, and the display of their results.
pub(crate) mod args;
pub(crate) mod constants;
pub(crate) mod echo;
pub(crate) mod files;
pub(crate) mod loads;
pub(crate) mod out;
pub(crate) mod pictures;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod requests;
pub(crate) mod searching;
pub(crate) mod show;
pub(crate) mod train;
pub(crate) mod viewing;
pub(crate) mod watch;

use args::ModelName;
use models::text::Corpus;
use models::tokenizer::Tokenizer;
use models::{Config, Model, TrainableModel, embedded};
use parallel::{Error, Result, bail};
use pictures::PicturesArgs;
use std::path::Path;
use tensor::quoted::escaped;

/// Flags of a command, and the work they ask for.
pub(crate) trait Run {
    /// True if each rank may be a process of its own.
    const BY_PROCESSES: bool = false;

    /// Runs the command and prints JSON lines or text for people. Returns false if a comparison found a
    /// difference.
    ///
    /// # Errors
    /// One sentence on the failure.
    fn run(self, json: bool) -> Result<bool>;
}

/// Prints an error on one line, with the names in it escaped, and the last calls of the ranks if ranks
/// failed; nothing if another process tells of it.
pub(crate) fn tell(Error { why, calls, told, .. }: &Error) {
    if *told {
        return;
    }
    out::failure(&format!("error: {}", echo::displayed(&escaped(why), &arguments())));
    if let Some(calls) = calls {
        out::failure(&format!("\n{calls}"));
    }
}

/// Returns the arguments of this process; bytes that are not UTF-8 are replaced.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect()
}

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
