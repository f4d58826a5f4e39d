//! `train`: learns text, or given ids, with checkpoints.
pub mod run;
pub mod schedule;
pub mod settings;
pub mod state;

use self::run::{NO_CHECKPOINTS, Run, Source, StepLine};
use self::state::State;
use crate::cli::args::{self, ModelName, TrainArgs};
use crate::cli::watch::Watch;
use crate::cli::{classify, config, corpus, model, noted, show};
use crate::commands::profile;
use models::text::Corpus;
use models::tokenizer::Tokens;
use models::{Model, ids};
use parallel::number::NumberName;
use parallel::{Error, Result, Sequence, bail, dump};

/// What is learnt.
enum Learnt {
    Text(Corpus),
    Ids(Vec<Sequence>),
}

impl Learnt {
    fn read(a: &TrainArgs, seq: usize, model: &Model) -> Result<Self> {
        let config = &model.config;
        Ok(match &a.batch {
            Some(file) => Learnt::Ids(ids::read(file, config.shape.vocabulary, config.positions)?),
            None => Learnt::Text(corpus(a.data.as_deref(), seq, &model.tokenizer()?)?),
        })
    }
    /// As a run takes it, and its hash.
    fn source(&self) -> (Source<'_>, u64) {
        match self {
            Learnt::Text(corpus) => (Source::Text(corpus), settings::hash(corpus)),
            Learnt::Ids(all) => (Source::Ids(all), ids::hash(all)),
        }
    }
}

/// The model that a run begins with.
fn begin_with(a: &TrainArgs, resume: Option<&State>) -> Result<Model> {
    match (resume, &a.model, &a.config) {
        (Some(state), None, None) => Ok(noted(state.model.clone())),
        (Some(_), ..) => {
            Err(Error::new("--resume goes on with its own model; leave out --model and --config"))
        }
        (None, Some(_), _) => model(a.model.as_ref()),
        (None, None, file) => {
            let mut model = Model::fresh(config(file.as_deref())?, a.seed.unwrap_or(0));
            let beside = file.as_deref().and_then(Tokens::beside);
            let bytes = a.batch.is_none().then_some(Tokens::Bytes); // what it is about to learn
            model.tokens = beside.or(bytes).unwrap_or(model.tokens);
            Ok(model)
        }
    }
}

pub(crate) fn run(a: TrainArgs, json: bool) -> Result<bool> {
    if a.model == Some(ModelName::Mlp) {
        return classify::run_train(&a, json);
    }
    a.mlp.unused()?;
    if a.number == Some(NumberName::F64) && (a.out.is_some() || a.resume.is_some()) {
        bail!("--number f64 {NO_CHECKPOINTS}");
    }
    let resume = a.resume.as_deref().map(State::read).transpose()?;
    let seq = resume.as_ref().map(|s| s.settings.seq).or(a.seq).unwrap_or(args::SEQ);
    let model = begin_with(&a, resume.as_ref())?;
    let learnt = Learnt::read(&a, seq, &model)?;
    let (source, hash) = learnt.source();
    let settings = match (&resume, &learnt) {
        (Some(state), _) => a.again(&state.settings, hash)?,
        (None, Learnt::Text(_)) => a.settings(hash),
        (None, Learnt::Ids(ids)) => a.settings_of_ids(ids),
    };
    let out = a.out.clone().or_else(|| a.resume.clone());
    let network = a.network.network(out.as_deref())?;
    let run = Run {
        model,
        source,
        settings,
        layout: a.layout.limited(a.memory.limit),
        network: if a.profile { network.profiling() } else { network },
        out: out.clone(),
        resume,
        checkpoint_every: a.checkpoint_every.unwrap_or(100),
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
    let watch = Watch::bar(run.settings.steps);
    let tell = |line: &StepLine| {
        watch.step(line, json);
        if json {
            show::json(line);
        }
    };
    let finished = run.train(&tell);
    let finished = a.network.keep_trace(&run.network, finished)?;
    watch.done();
    if !json {
        show::finished(&finished, out.as_deref());
    }
    if a.profile {
        let own = run.settings.number == NumberName::F32; // the peak is of its multiply-adds
        let peak = own.then(|| bench::peak_gflops(a.layout.ranks()));
        profile::tell(&run.network, peak, json)?;
    }
    Ok(true)
}
