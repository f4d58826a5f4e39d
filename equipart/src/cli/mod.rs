//! The command line: what each command takes, and how its results are shown.
mod args;
mod out;
mod show;
mod watch;

use crate::compare::{Work, compare};
use crate::generate::{Request, generate};
use crate::prove::{Subject, certify};
use crate::sampling::Sampling;
use crate::settings::{Settings, hash};
use crate::state::{self, State};
use crate::text::{self, Corpus};
use crate::train::Run;
use crate::{Config, Error, Layout, Model, Result, bench, embedded, price};
use args::{Arguments, Command, GenerateArgs, PriceArgs, ProveArgs, TrainArgs};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use tensor::{Key, mix};
use watch::Watch;

/// Runs the command of the process' arguments. Exit code 2 is bad input; 1 a comparison that found a difference.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = arguments.json;
    let outcome = match arguments.command.unwrap_or_default() {
        Command::Compare(a) => run_compare(a, json),
        Command::Train(a) => run_train(a, json),
        Command::Generate(a) => run_generate(a, json),
        Command::Prove(a) => run_prove(a, json),
        Command::Price(a) => run_price(a, json),
        Command::Bench => run_bench(json),
    };
    match outcome.and_then(|right| out::finish().map(|()| right)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            out::note(&format!("error: {why}"));
            ExitCode::from(2)
        }
    }
}

fn model(dir: Option<&Path>) -> Result<Model> {
    dir.map_or_else(Model::embedded, Model::read)
}

fn corpus(file: Option<&Path>, seq: usize) -> Result<Corpus> {
    match file {
        Some(file) => Ok(Corpus::read(file, seq)?),
        None => Ok(Corpus::new(embedded::CORPUS, "the embedded text", seq)?),
    }
}

fn config(file: Option<&Path>) -> Result<Config> {
    let embedded = || Config::parse(embedded::CONFIG, "the embedded default");
    Ok(file.map_or_else(embedded, Config::read)?)
}

/// A key that no run had before.
fn fresh_key() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    mix(now.map_or(0, |d| d.as_nanos() as u64) ^ u64::from(std::process::id()))
}

fn run_compare(a: args::CompareArgs, json: bool) -> Result<bool> {
    let model = model(a.model.as_deref())?;
    let corpus = corpus(a.data.as_deref(), model.config.positions.min(64))?;
    let layouts = if a.layout.is_empty() {
        let usual = ["tp=2", "tp=2,sp", "dp=2", "tp=2,sp,dp=2"].map(|l| l.parse::<Layout>().expect("a layout"));
        usual.into_iter().filter(|l| l.fits(&model.config.shape).is_ok()).collect()
    } else {
        a.layout
    };
    let watch = Watch::spinner();
    let rows = compare(&Work { model: &model, corpus: &corpus, layouts }, &|what| watch.say(what))?;
    watch.done();
    if json {
        rows.iter().for_each(show::json);
    } else {
        show::comparison(&model.origin, &rows);
    }
    Ok(rows.iter().all(|r| {
        let tokens = r.tokens_equal != Some(false) || r.tie.is_some();
        r.equal && tokens && r.error_ratio.is_finite()
    }))
}

fn run_train(a: TrainArgs, json: bool) -> Result<bool> {
    let resume = a.resume.as_deref().map(State::read).transpose()?;
    let seq = resume.as_ref().map(|s| s.settings.seq).or(a.seq).unwrap_or(args::SEQ);
    let corpus = corpus(a.data.as_deref(), seq)?;
    let settings = match &resume {
        Some(state) => a.again(&state.settings, hash(&corpus))?,
        None => a.settings(hash(&corpus)),
    };
    let model = match (&resume, &a.model, &a.config) {
        (Some(state), None, None) => state.model.clone(),
        (Some(_), ..) => {
            return Err(Error("--resume goes on with its own model; leave out --model and --config".into()));
        }
        (None, Some(dir), _) => Model::read(dir)?,
        (None, None, file) => Model::fresh(config(file.as_deref())?, settings.seed),
    };
    let out = a.out.clone().or_else(|| a.resume.clone());
    let run = Run {
        model,
        corpus: &corpus,
        settings,
        layout: a.layout,
        out: out.clone(),
        resume,
        checkpoint_every: a.checkpoint_every,
        stop_after: a.stop_after,
    };
    run.check()?;
    let _lock = match (&out, &a.resume) {
        (Some(dir), Some(from)) => Some(state::prepare_again(dir, from, &run.model.config)?),
        (Some(dir), None) => Some(state::prepare(dir, &run.model.config)?),
        (None, _) => None,
    };
    let watch = Watch::bar(run.settings.steps);
    let finished = run.train(&|line| {
        watch.step(line, json);
        if json {
            show::json(line);
        }
    })?;
    watch.done();
    if !json {
        show::finished(&finished, out.as_deref());
    }
    Ok(true)
}

fn run_generate(a: GenerateArgs, json: bool) -> Result<bool> {
    let model = model(a.model.as_deref())?;
    let bytes = model.config.shape.vocabulary == 256;
    let mut prompts: Vec<Vec<u32>> = a.prompt_ids.iter().map(|ids| ids.0.clone()).collect();
    if !a.prompt.is_empty() && !bytes {
        let v = model.config.shape.vocabulary;
        return Err(Error(format!(
            "text is read as bytes, and this model has a vocabulary of {v}; give --prompt-ids"
        )));
    }
    prompts.extend(a.prompt.iter().map(|text| text::encode(text)));
    if prompts.is_empty() {
        return Err(Error("there is no prompt; give --prompt TEXT or --prompt-ids 1,2,3".into()));
    }
    let sampling = Sampling { temperature: a.temperature, top_k: a.top_k, top_p: a.top_p, seed: a.seed };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let max_new = a.max_new.unwrap_or(model.config.positions.saturating_sub(longest).min(128));
    let request = Request { prompts, max_new, sampling };
    let watch = Watch::bar(request.max_new);
    let generated = generate(&model, &a.layout, &request, &|_| watch.tick())?;
    watch.done();
    if json {
        generated.lines().for_each(|line| show::json(&line));
    } else {
        show::texts(&generated, bytes)?;
    }
    Ok(true)
}

fn run_prove(a: ProveArgs, json: bool) -> Result<bool> {
    let config = config(a.config.as_deref())?;
    a.layout.fits(&config.shape)?;
    let subject = Subject::small(config.shape, &a.layout)?;
    let key = Key(a.key.map_or_else(fresh_key, |k| k.0));
    let watch = Watch::spinner();
    watch.say("proving");
    let verdict = certify(&subject, &a.layout, &[key, key.next()])?;
    watch.done();
    if json {
        show::json(&verdict);
    } else {
        out::line(&verdict.statement());
    }
    Ok(verdict.equal)
}

fn run_price(a: PriceArgs, json: bool) -> Result<bool> {
    let config = config(a.config.as_deref())?;
    let settings: Settings = a.settings();
    let prices = price::price(&config, &settings, &a.layout)?;
    if json {
        prices.iter().for_each(show::json);
    } else {
        show::prices(&prices);
    }
    Ok(true)
}

fn run_bench(json: bool) -> Result<bool> {
    let watch = Watch::spinner();
    let figures = bench::bench(&|what| watch.say(what))?;
    watch.done();
    for figure in &figures {
        if json {
            show::json(figure);
        } else {
            out::line(&format!("{:<24} {:>10.1} {}", figure.name, figure.value, figure.unit));
        }
    }
    Ok(true)
}
