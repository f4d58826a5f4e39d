//! `train`: trains on text, or on given ids, with checkpoints.
mod check;
pub mod data;
pub mod epochs;
pub(crate) mod flags;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod state;

use self::check::NO_CHECKPOINTS;
use self::data::TrainData;
pub(crate) use self::flags::TrainArgs;
use self::run::{StepLine, TrainRun};
use self::state::State;
use super::Run;
use crate::cli::args;
use crate::cli::show;
use crate::cli::watch::ProgressWatch;
use crate::commands::profile;
use crate::device::DeviceName;
use parallel::dtype::DtypeName;
use parallel::{Result, bail, dump};
use std::sync::Mutex;

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let mut a = self;
        a.layout = a.table.on(a.layout)?;
        a.microbatches = args::microbatches(&a.layout, a.microbatches)?;
        if a.number == Some(DtypeName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--dtype f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = a.begin_with(resume.as_ref())?;
        let (watch, epochs) = (ProgressWatch::bar(0), Mutex::new(Vec::new()));
        let settings = match (&resume, &learnt) {
            (Some(state), _) => a.again(state, &learnt)?,
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
            layout: a.offload.of(a.on_ranks.of(a.layout, &model.design)?, a.device)?,
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
            bail!("--checkpoint-every needs --out; without it nothing is saved");
        }
        let only = [("dump", a.dump.is_some()), ("profile", a.profile)];
        run.network =
            a.processes.join(run.network, (&run.layout, engine), a.on_ranks.split.as_ref(), &only)?;
        run.ready()?; // now the number of ranks on this machine is known
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let reported = run.network.processes.as_ref().is_none_or(|processes| processes.rank() == 0);
        let _lock = out.as_deref().filter(|_| reported).map(lock).transpose()?;
        watch.of(run.settings.steps);
        let step = |line: &StepLine| {
            watch.step(line, json || pictures.is_some());
            match &line.epoch {
                Some(epoch) if json => show::json(epoch),
                Some(epoch) => watch.say(&epoch.to_string()),
                None if json && pictures.is_none() => show::json(line),
                None => {}
            }
            epochs.lock().expect("nothing panics under this lock").extend(line.epoch.clone());
        };
        let evaluated = |done, of| {
            if !json {
                watch.part("held-out text: evaluated", done, of);
            }
        };
        let finished = a.network.keep_trace(&run.network, run.train(&step, &evaluated))?;
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
            // the dtype of the measured peak
            let own = (run.settings.device, run.settings.number) == (DeviceName::Cpu, DtypeName::F32);
            let peak = own.then(|| bench::peak_gflops(a.layout.ranks()));
            profile::tell(&run.network, peak, json)?;
        }
        Ok(true)
    }
}
