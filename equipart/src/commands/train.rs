//! `train`: trains on text, or on given ids, with checkpoints.
mod ended;
pub(crate) mod log;
mod shown;
mod specified;
mod stragglers;

pub(crate) use crate::cli::train::TrainArgs;
use super::Run;
use crate::cli::out;
use crate::cli::watch::ProgressWatch;
use crate::draw::details;
use parallel::dtype::DtypeName;
use parallel::{Result, bail, dump};
use run::event::RunEvent;
use run::price::PriceRun;
use run::train::state::State;
use run::train::{NO_CHECKPOINTS, state};
use std::sync::Arc;

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let mut a = self;
        a.schedule_layout()?;
        let unknown = a.unknown()?;
        a.take_microbatches()?;
        if a.number == Some(DtypeName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--dtype f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = a.begin_with(resume.as_ref())?;
        let watch = Arc::new(ProgressWatch::bar(0));
        let (settings, unknown) = a.begun(resume.as_ref(), &learnt, unknown)?;
        let mut run = a.specified((model, &learnt), settings, resume)?;
        a.join(&mut run, unknown, json)?;
        run.ready()?; // now the number of ranks on this machine is known
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let _lock = run.out.as_deref().filter(|_| !out::is_silent()).map(lock).transpose()?;
        watch.of(run.settings.steps);
        let views = a.views(&mut run, &watch, json)?;
        views.during(|views| {
            views.details(|observer| details::tell(&PriceRun::step_of(&run), observer))?;
            let finished = run.train(&|event: &RunEvent| views.see(event));
            watch.done();
            let finished = a.network.keep_trace(&run.network, finished)?;
            a.ended(&run, &finished, views).map(|()| true)
        })
    }
}

#[cfg(test)]
mod tests;
