//! The command line: what each command takes, and how its results are shown.
mod args;
mod bench;
mod cases;
mod classify;
mod collectives;
mod diff;
mod judge;
mod learn;
mod manual;
mod out;
mod profile;
mod show;
mod speak;
mod strategies;
mod watch;

use crate::text::Corpus;
use crate::tokenizer::Tokenizer;
use crate::{Config, Error, Model, Result, embedded};
use args::{Arguments, Command, ModelName};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use tensor::count::Uncountable;
use tensor::quoted::escaped;

/// Runs the command of the process' arguments. Exit code 2 is bad input; 1 a comparison that found a difference.
pub fn main() -> ExitCode {
    let Arguments { command, json } = Arguments::parse();
    let outcome =
        Uncountable::caught(|| run(command.unwrap_or_default(), json)).unwrap_or_else(|why| Err(why.into()));
    match outcome.and_then(|right| out::finish().map(|()| right)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            tell(&error);
            ExitCode::from(2)
        }
    }
}

/// Whether what was compared is equal; true where nothing was.
fn run(command: Command, json: bool) -> Result<bool> {
    match command {
        Command::Compare(a) => judge::run_compare(a, json),
        Command::Train(a) => learn::run_train(a, json),
        Command::Generate(a) => speak::run_generate(a, json),
        Command::Prove(a) => judge::run_prove(a, json),
        Command::Price(a) => judge::run_price(a, json),
        Command::Eval(a) => speak::run_eval(a, json),
        Command::Convert(a) => speak::run_convert(&a, json),
        Command::Diff(a) => diff::run(&a, json),
        Command::Collectives(a) => collectives::run(&a, json),
        Command::Strategies => {
            strategies::run(json);
            Ok(true)
        }
        Command::Bench(a) => bench::run(a, json),
        Command::Completions { shell } => {
            manual::completions(shell);
            Ok(true)
        }
        Command::Man { out } => manual::run(out.as_deref()).map(|()| true),
    }
}

/// Says what went wrong: a sentence, on one line whatever names are in it, and, where ranks failed, their last calls.
fn tell(Error { why, calls, .. }: &Error) {
    out::note(&format!("error: {}", escaped(why)));
    if let Some(calls) = calls {
        out::note(&format!("\n{calls}"));
    }
}

/// A model of text.
fn model(name: Option<&ModelName>) -> Result<Model> {
    Ok(noted(match name {
        None | Some(ModelName::Embedded) => Model::embedded()?,
        Some(ModelName::Folder(folder)) => Model::read(folder)?,
        Some(ModelName::Mlp) => {
            return Err(Error::new(
                "mlp is a classifier of pictures, for train and prove; name a model of text",
            ));
        }
    }))
}

/// The model; what is odd about it is said.
fn noted(model: Model) -> Model {
    note(&model.config);
    model
}

fn note(config: &Config) {
    if let Some(note) = config.note() {
        out::note(&format!("note: {note}"));
    }
}

fn corpus(file: Option<&Path>, seq: usize, tokenizer: &Tokenizer) -> Result<Corpus> {
    match file {
        Some(file) => Ok(Corpus::read(file, seq, tokenizer)?),
        None => Ok(Corpus::tokenized(embedded::CORPUS, "the embedded text", seq, tokenizer)?),
    }
}

/// Ids for a model that reads no text: which ones is nothing to what is compared.
fn any_ids(seq: usize, vocabulary: usize) -> Result<Corpus> {
    let below: Vec<u8> =
        embedded::CORPUS.iter().map(|&byte| (usize::from(byte) % vocabulary) as u8).collect();
    Ok(Corpus::new(&below, "the embedded text", seq)?)
}

fn config(file: Option<&Path>) -> Result<Config> {
    let embedded = || Config::parse(embedded::CONFIG, "the embedded default");
    let config = file.map_or_else(embedded, Config::read)?;
    note(&config);
    Ok(config)
}
