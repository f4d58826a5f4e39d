//! `train`: trains on text, or on given ids, with checkpoints.
mod auto;
pub(crate) mod dropout;
pub(crate) mod evaluations;
pub(crate) mod flags;
pub(crate) mod log;
mod loss_scale;
mod planned;
pub(crate) mod saving;
mod shown;
mod stragglers;

pub(crate) use self::flags::TrainArgs;
use super::Run;
use crate::cli::watch::ProgressWatch;
use crate::cli::{out, show};
use crate::commands::profile;
use parallel::dtype::DtypeName;
use parallel::{Network, Result, bail, dump};
use run::device::DeviceName;
use run::event::RunEvent;
use run::train::data::TrainData;
use run::train::epochs;
use run::train::settings::Settings;
use run::train::state::State;
use run::train::stragglers::stragglers;
use run::train::{NO_CHECKPOINTS, TrainRun, state};
use std::sync::Arc;

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let mut a = self;
        a.schedule_layout()?;
        let mut unknown = a.unknown()?;
        a.take_microbatches()?;
        if a.number == Some(DtypeName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--dtype f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = a.begin_with(resume.as_ref())?;
        let watch = Arc::new(ProgressWatch::bar(0));
        let settings = match &resume {
            Some(state) => a.again(state, &learnt)?,
            None => a.settings_for(&learnt)?,
        };
        if resume.is_some() && unknown.take().is_some() {
            let Settings { batch_size, microbatches, .. } = settings;
            out::note(&format!(
                "note: the resumed run keeps its batch size, {batch_size}, and microbatches, {microbatches}"
            ));
        }
        let pictures = if let TrainData::Digits(digits) = &learnt { Some(digits) } else { None };
        let every = |batch_size| pictures.map_or(100, |digits| epochs::steps(digits, batch_size));
        let layout = a.planned(&settings, &model, &learnt)?;
        let out = a.out.clone().or_else(|| a.resume.clone());
        let network = Network { counts_waits: a.stragglers, ..a.network.network(out.as_deref())? };
        let mut run = TrainRun {
            source: &learnt,
            checkpoint_every: a.saving.checkpoint_every.unwrap_or_else(|| every(settings.batch_size)),
            settings,
            layout: a.offload.of(a.on_ranks.of(layout, &model.design)?, a.device)?,
            model,
            network: if a.profile { network.profiling() } else { network },
            out: out.clone(),
            evaluations: a.evaluations.of(resume.as_ref().map(|state| state.evaluations)),
            saves: a.saving.of(out.as_deref(), a.files(resume.as_ref()))?,
            check_every: a.check_every,
            stop_after: a.stop_after,
            dump: a.dump.clone(),
            resume,
            epoch_before: None,
            priced: None,
        };
        run.fit_microbatches().iter().for_each(|note| out::note(note));
        let engine = run.settings.device.open(run.layout.ranks(), &out::note)?;
        run.check()?;
        let only = [("dump", a.dump.is_some()), ("profile", a.profile)];
        run.network =
            a.processes.join(run.network, (&[run.layout], engine), a.on_ranks.split.as_ref(), &only)?;
        let largest = unknown.map(|unknown| run.largest(unknown)).transpose()?;
        if let (Some(unknown), Some(found)) = (unknown, &largest) {
            a.take(found);
            run.settings = a.settings_for(&learnt)?;
            run.checkpoint_every =
                a.saving.checkpoint_every.unwrap_or_else(|| every(run.settings.batch_size));
            out::note(&format!("note: --{} auto takes {found}", auto::flag(unknown)));
            if json {
                show::json(&serde_json::json!({ "largest_batch": found }));
            }
        }
        run.ready()?; // now the number of ranks on this machine is known
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let reported = run.network.processes.as_ref().is_none_or(|processes| processes.rank() == 0);
        let _lock = out.as_deref().filter(|_| reported).map(lock).transpose()?;
        let from = a.resume.as_deref().zip(run.resume.as_ref().map(State::steps)).filter(|_| reported);
        watch.of(run.settings.steps);
        run.priced = largest.map(|found| found.peak_bytes);
        let (views, epoch_before) = a.views(&run, &watch, json, (reported, from))?;
        run.epoch_before = epoch_before;
        let finished = run.train(&|event: &RunEvent| views.see(event));
        let finished = a.network.keep_trace(&run.network, finished)?;
        watch.done();
        views.end()?;
        if let Some(why) = finished.evaluations.ended(&learnt) {
            out::note(&format!("note: the run ends after step {}: {why}", finished.steps));
        }
        if let (Some(digits), false) = (pictures, json) {
            show::learnt(&finished.epochs, digits.test.len(), out.as_deref());
        } else if !json {
            show::finished(&finished, out.as_deref());
        }
        if json && !finished.experts.is_empty() {
            show::json(&serde_json::json!({ "experts": finished.experts }));
        }
        show::loads(json, &finished.experts);
        if a.stragglers {
            self::stragglers::tell(&stragglers(&finished.waits, run.layout.ranks()), json);
        }
        if a.profile {
            // the dtype of the measured peak
            let own = (run.settings.device, run.settings.number) == (DeviceName::Cpu, DtypeName::F32);
            let peak = own.then(|| bench::peak_gflops(run.layout.ranks()));
            profile::tell(&run.network, peak, json)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
