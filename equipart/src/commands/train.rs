//! `train`: learns text, or given ids, with checkpoints.
pub mod epochs;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod state;

use self::epochs::{EpochLine, Pictures};
use self::run::{NO_CHECKPOINTS, StepLine, TrainData, TrainRun};
use self::state::State;
use crate::cli::args::{self, ModelName, TrainArgs};
use crate::cli::watch::Watch;
use crate::cli::{config, corpus, model, noted, pictures, show};
use crate::commands::profile;
use models::digits::Digits;
use models::text::Corpus;
use models::tokenizer::TokenizerSource;
use models::{Learner, Model, ids};
use parallel::number::NumberName;
use parallel::{Result, Sequence, bail, dump};
use std::sync::Mutex;

/// What is learnt.
enum Learnt {
    Text(Corpus),
    Ids(Vec<Sequence>),
    Digits(Digits),
}

impl Learnt {
    fn read(a: &TrainArgs, seq: usize, model: &Model) -> Result<Self> {
        let config = &model.config;
        Ok(match &a.batch {
            Some(file) => Learnt::Ids(ids::read(file, config.shape.vocabulary, config.positions)?),
            None => Learnt::Text(corpus(a.data.as_deref(), seq, &model.tokenizer()?)?),
        })
    }
    /// As a run takes it, and its hash; of an epoch, `watch` is told.
    fn source<'a>(&'a self, watch: &'a (dyn Fn(&EpochLine) + Sync)) -> (TrainData<'a>, u64) {
        match self {
            Learnt::Text(corpus) => (TrainData::Text(corpus), settings::hash(corpus)),
            Learnt::Ids(all) => (TrainData::Ids(all), ids::hash(all)),
            Learnt::Digits(digits) => (TrainData::Pictures(Pictures { digits, watch }), digits.hash()),
        }
    }
}

/// The model that a run begins with, and what it learns.
fn begin_with(a: &TrainArgs, resume: Option<&State>) -> Result<(Learner, Learnt)> {
    let begun = match (resume, &a.model, &a.config) {
        (Some(state), None, None) => Some(state.model.clone()),
        (Some(_), ..) => {
            bail!("--resume goes on with its own model; leave out --model and --config");
        }
        (None, ..) => None,
    };
    let of_pictures =
        a.model == Some(ModelName::Mlp) || begun.as_ref().is_some_and(|begun| begun.text.is_none());
    a.unused(of_pictures)?;
    if of_pictures {
        let digits = pictures::digits(a.data.as_deref())?;
        let fresh = || a.pictures.fresh(Some(&digits), a.seed.unwrap_or(0));
        return Ok((begun.unwrap_or_else(fresh), Learnt::Digits(digits)));
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
    let learnt = Learnt::read(a, seq, &model)?;
    Ok((model.into(), learnt))
}

/// Shows an epoch as it ends.
fn tell_epoch(line: &EpochLine, watch: &Watch, json: bool) {
    if json {
        return show::json(line);
    }
    let EpochLine { epoch, loss, accuracy, seconds, examples_per_second } = line;
    let right = 100.0 * accuracy;
    watch.say(&format!(
        "epoch {epoch}: loss {loss:.4}, {right:.2} % right, {seconds:.1} s, {examples_per_second:.0} pictures/s"
    ));
}

pub(crate) fn run(a: TrainArgs, json: bool) -> Result<bool> {
    if a.number == Some(NumberName::F64) && (a.out.is_some() || a.resume.is_some()) {
        bail!("--number f64 {NO_CHECKPOINTS}");
    }
    let resume = a.resume.as_deref().map(State::read).transpose()?;
    let (model, learnt) = begin_with(&a, resume.as_ref())?;
    let (watch, epochs) = (Watch::bar(0), Mutex::new(Vec::new()));
    let tell = |line: &EpochLine| {
        tell_epoch(line, &watch, json);
        epochs.lock().expect("nothing panics under this lock").push(line.clone());
    };
    let (source, hash) = learnt.source(&tell);
    let settings = match (&resume, &learnt) {
        (Some(state), _) => a.again(&state.settings, hash)?,
        (None, Learnt::Text(_)) => a.settings(hash),
        (None, Learnt::Ids(ids)) => a.settings_of_ids(ids),
        (None, Learnt::Digits(digits)) => a.settings_of_pictures(digits)?,
    };
    let every =
        if let Learnt::Digits(digits) = &learnt { epochs::steps(digits, settings.batch_size) } else { 100 };
    let out = a.out.clone().or_else(|| a.resume.clone());
    let network = a.network.network(out.as_deref())?;
    let run = TrainRun {
        model,
        source,
        settings,
        layout: a.layout.limited(a.memory.limit),
        network: if a.profile { network.profiling() } else { network },
        out: out.clone(),
        resume,
        checkpoint_every: a.checkpoint_every.unwrap_or(every),
        stop_after: a.stop_after,
        dump: a.dump.clone(),
    };
    run.ready()?;
    if out.is_none() && a.checkpoint_every.is_some() {
        bail!("--checkpoint-every says when to save, and nothing is saved without --out");
    }
    a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
    let _lock = match (&out, &a.resume) {
        (Some(dir), Some(from)) => Some(state::prepare_again(dir, from, &run.model)?),
        (Some(dir), None) => Some(state::prepare(dir, &run.model)?),
        (None, _) => None,
    };
    watch.of(run.settings.steps);
    let pictures = matches!(learnt, Learnt::Digits(_));
    let tell = |line: &StepLine| {
        watch.step(line, json || pictures);
        if json && !pictures {
            show::json(line);
        }
    };
    let finished = run.train(&tell);
    let finished = a.network.keep_trace(&run.network, finished)?;
    watch.done();
    if let (Learnt::Digits(digits), false) = (&learnt, json) {
        show::learnt(&epochs.lock().expect("no rank is left"), digits.test.len(), out.as_deref());
    } else if !json {
        show::finished(&finished, out.as_deref());
    }
    if a.profile {
        let own = run.settings.number == NumberName::F32; // the peak is of its multiply-adds
        let peak = own.then(|| bench::peak_gflops(a.layout.ranks()));
        profile::tell(&run.network, peak, json)?;
    }
    Ok(true)
}
