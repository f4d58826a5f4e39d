//! `train`: trains on text, or on given ids, with checkpoints.
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
use run::train::{NO_CHECKPOINTS, RunFacts, state};

impl Run for TrainArgs {
    const BY_PROCESSES: bool = true;
    const HAS: Option<u8> = Some(RECORDS | CURVES);

    fn run(self, views: &Views) -> Result<bool> {
        let a = &self;
        let asked = a.asked()?;
        if a.number == Some(DtypeName::F64) && (a.out.is_some() || a.resume.is_some()) {
            bail!("--dtype f64 {NO_CHECKPOINTS}");
        }
        let resume = a.resume.as_deref().map(State::read).transpose()?;
        let in_place = a.resume.as_deref().filter(|_| a.out.is_none() || a.out == a.resume);
        in_place.filter(|_| !out::is_silent()).into_iter().for_each(state::tidy);
        let (model, learnt) = a.begin_with(resume.as_ref())?;
        let settings = asked.settings(resume.as_ref(), &learnt, views)?;
        let unknown = asked.unknown()?.filter(|_| resume.is_none());
        let run = a.joined(a.specified((model, &learnt), (settings, asked.layout), resume, views)?, views)?;
        let (run, priced) = match unknown {
            None => (run, None),
            Some(unknown) => a.sized(run, (unknown, &asked), views)?,
        };
        run.ready()?; // now the number of ranks on this machine is known
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let lock = |dir| state::prepare(dir, a.resume.as_deref(), &run.model);
        let _lock = run.out.as_deref().filter(|_| !out::is_silent()).map(lock).transpose()?;
        let facts = RunFacts { priced, epoch_before: shown::open(a, &run, views)? };
        a.trained(&run, &facts, views)
    }
}

#[cfg(test)]
mod tests;
