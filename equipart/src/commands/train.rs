//! `train`: learns text, or given ids, with checkpoints.
pub mod epochs;
mod flags;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod state;

pub(crate) use self::flags::{DropoutRate, TrainArgs};
use self::run::{NO_CHECKPOINTS, Progress, TrainData, TrainRun};
use self::settings::Settings;
use self::state::State;
use super::Run;
use crate::cli::args::{self, ModelName};
use crate::cli::watch::Watch;
use crate::cli::{config, corpus, model, noted, out, pictures, processes, show};
use crate::commands::profile;
use crate::device::DeviceName;
use models::tokenizer::TokenizerSource;
use models::{Config, Learner, Model, ids};
use parallel::number::NumberName;
use parallel::{Result, bail, dump};
use std::sync::Mutex;

/// The model that a run begins with, and what it learns.
fn begin_with(a: &TrainArgs, resume: Option<&State>) -> Result<(Learner, TrainData)> {
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
fn noted_end(state: &State, settings: Settings) -> Settings {
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

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let mut a = self;
        a.layout = a.table.on(a.layout)?;
        a.microbatches = args::microbatches(&a.layout, a.microbatches)?;
        if a.number == Some(NumberName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--number f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = begin_with(&a, resume.as_ref())?;
        let (watch, epochs) = (Watch::bar(0), Mutex::new(Vec::new()));
        let settings = match (&resume, &learnt) {
            (Some(state), _) => noted_end(state, a.again(&state.settings, &learnt)?),
            (None, TrainData::Text(_)) => a.settings(learnt.hash()),
            (None, TrainData::Ids(ids)) => a.settings_of_ids(ids),
            (None, TrainData::Digits(digits)) => a.settings_of_pictures(digits)?,
        };
        let pictures = if let TrainData::Digits(digits) = &learnt { Some(digits) } else { None };
        let every = pictures.map_or(100, |digits| epochs::steps(digits, settings.batch_size));
        let out = a.out.clone().or_else(|| a.resume.clone());
        let network = a.network.network(out.as_deref())?;
        let mut run = TrainRun {
            source: &learnt,
            settings,
            layout: a.on_ranks.of(a.layout, &model.design)?,
            model,
            network: if a.profile { network.profiling() } else { network },
            out: out.clone(),
            resume,
            checkpoint_every: a.checkpoint_every.unwrap_or(every),
            stop_after: a.stop_after,
            dump: a.dump.clone(),
        };
        let engine = run.settings.device.open(run.layout.ranks())?;
        run.check()?;
        if out.is_none() && a.checkpoint_every.is_some() {
            bail!("--checkpoint-every says when to save, and nothing is saved without --out");
        }
        let only = [("dump", a.dump.is_some()), ("profile", a.profile)];
        run.network = processes::joined(
            run.network,
            (&run.layout, engine),
            a.on_ranks.split.as_ref(),
            (&a.processes, &only),
        )?;
        run.ready()?; // now it is known how many ranks are on this machine
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let told = run.network.processes.as_ref().is_none_or(|processes| processes.rank() == 0);
        let _lock = out.as_deref().filter(|_| told).map(lock).transpose()?;
        watch.of(run.settings.steps);
        let tell = |progress: Progress| {
            let line = match progress {
                Progress::Step(line) => line,
                Progress::Evaluated(..) if json => return,
                Progress::Evaluated(done, of) => return watch.part("held-out text: evaluated", done, of),
            };
            watch.step(line, json || pictures.is_some());
            match &line.epoch {
                Some(epoch) if json => show::json(epoch),
                Some(epoch) => watch.say(&epoch.to_string()),
                None if json && pictures.is_none() => show::json(line),
                None => {}
            }
            epochs.lock().expect("nothing panics under this lock").extend(line.epoch.clone());
        };
        let finished = run.watched(&tell);
        let finished = a.network.keep_trace(&run.network, finished)?;
        watch.done();
        if let (Some(digits), false) = (pictures, json) {
            show::learnt(&epochs.lock().expect("no rank is left"), digits.test.len(), out.as_deref());
        } else if !json {
            show::finished(&finished, out.as_deref());
        }
        if json && !finished.experts.is_empty() {
            show::json(&serde_json::json!({ "experts": finished.experts }));
        }
        show::loads(json, &finished.experts);
        if a.profile {
            let own = (run.settings.device, run.settings.number) == (DeviceName::Cpu, NumberName::F32); // whose multiply-adds the peak is of
            let peak = own.then(|| bench::peak_gflops(a.layout.ranks()));
            profile::tell(&run.network, peak, json)?;
        }
        Ok(true)
    }
}
