//! `train`: trains on text, or on given ids, with checkpoints.
pub(crate) mod log;
mod shown;
mod specified;
mod stragglers;
mod trained;

use crate::cli::run::Run;
pub(crate) use crate::cli::train::TrainArgs;
use crate::terminal::out;
use crate::views::Views;
use crate::views::view::{CURVES, RECORDS};
use parallel::dtype::DtypeName;
use parallel::{Result, bail, dump};
use run::train::state::State;
use run::train::{NO_CHECKPOINTS, state};

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;

    const HAS: Option<u8> = Some(RECORDS | CURVES);

    fn run(self, views: &Views) -> Result<bool> {
        let mut a = self;
        a.schedule_layout()?;
        a.plans_for_machine()?;
        let unknown = a.unknown()?;
        a.take_microbatches()?;
        if a.number == Some(DtypeName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--dtype f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let in_place = a.resume.as_deref().filter(|_| a.out.is_none() || a.out == a.resume);
        in_place.filter(|_| !out::is_silent()).into_iter().for_each(state::tidy);
        let (model, learnt) = a.begin_with(resume.as_ref())?;
        let (settings, unknown) = a.begun(resume.as_ref(), &learnt, unknown)?;
        let mut run = a.specified((model, &learnt), settings, resume, views)?;
        a.join(&mut run, unknown, views)?;
        run.ready()?; // now the number of ranks on this machine is known
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let _lock = run.out.as_deref().filter(|_| !out::is_silent()).map(lock).transpose()?;
        a.trained(&mut run, views)
    }
}

#[cfg(test)]
mod tests;
