//! The command line: what each command takes, and how its results are shown.
pub(crate) mod args;
mod echo;
pub(crate) mod out;
pub(crate) mod pictures;
pub(crate) mod processes;
pub(crate) mod show;
pub(crate) mod watch;

use crate::commands::Command;
use crate::commands::compare::CompareArgs;
use args::{Arguments, ModelName};
use clap::Parser;
use models::text::Corpus;
use models::tokenizer::Tokenizer;
use models::{Config, Learner, Model, embedded};
use parallel::{Error, Result, bail};
use pictures::PicturesArgs;
use std::path::Path;
use std::process::ExitCode;
use tensor::count::Uncountable;
use tensor::quoted::escaped;

/// Runs the command of the process' arguments. Exit code 2 is bad input; 1 a comparison that found a difference.
pub fn main() -> ExitCode {
    tensor::files::limits_are_errors();
    let Arguments { command, json } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(why) if why.use_stderr() => {
            let seen: Vec<_> = arguments().iter().map(|argument| escaped(argument)).collect();
            let program = ["equipart".to_string()].into_iter();
            let why = Arguments::try_parse_from(program.chain(seen.clone())).err().unwrap_or(why); // quotes no control characters
            out::failure(echo::shown(&why.render().to_string(), &seen).trim_end());
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    let command = command.unwrap_or_else(|| Command::Compare(CompareArgs::by_default()));
    let run = || processes::begin(&command).and_then(|()| command.run(json));
    let outcome = Uncountable::caught(run).unwrap_or_else(|why| Err(why.into()));
    match outcome.and_then(|right| out::finish().map(|()| right)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            tell(&error);
            ExitCode::from(2)
        }
    }
}

/// Says what went wrong: a sentence, on one line whatever names are in it, and, where ranks failed, their last calls.
pub(crate) fn tell(Error { why, calls, .. }: &Error) {
    out::failure(&format!("error: {}", echo::shown(&escaped(why), &arguments())));
    if let Some(calls) = calls {
        out::failure(&format!("\n{calls}"));
    }
}

/// The arguments of this process, as far as they are text.
fn arguments() -> Vec<String> {
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
