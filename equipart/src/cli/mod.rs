//! The command line: what each command takes, and how its results are shown.
mod args;
mod bench;
mod cases;
mod classify;
mod collectives;
mod diff;
mod judge;
mod learn;
mod out;
mod profile;
mod show;
mod speak;
mod strategies;
mod watch;

use crate::text::Corpus;
use crate::tokenizer::Tokenizer;
use crate::{Config, Error, Model, Result, embedded};
use args::{Arguments, Command};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use tensor::count::Uncountable;

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
    }
}

/// Says what went wrong: a sentence, and, where ranks failed, their last calls.
fn tell(Error { why, calls }: &Error) {
    out::note(&format!("error: {why}"));
    if let Some(calls) = calls {
        out::note(&format!("\n{calls}"));
    }
}

fn model(dir: Option<&Path>) -> Result<Model> {
    dir.map_or_else(Model::embedded, Model::read)
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
    Ok(file.map_or_else(embedded, Config::read)?)
}
