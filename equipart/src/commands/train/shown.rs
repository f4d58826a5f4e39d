//! Views of a training run.
use crate::cli::train::TrainArgs;
use crate::terminal::out;
use crate::views::{Views, log};
use parallel::Result;
use run::train::TrainRun;
use run::train::data::TrainData;
use run::train::epochs::{self, EpochBefore};
use run::train::log::{EarlierSteps, LOG};
use run::train::state::State;

/// Opens the views that flags ask for, and the log of the run's folder. Returns the epochs, and the part of
/// the first epoch, that the run has shown before, if it resumes one.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn open(a: &TrainArgs, run: &TrainRun, views: &Views) -> Result<Option<EpochBefore>> {
    let done = run.resume.as_ref().map(State::steps);
    let read = |(dir, done): (_, usize)| EarlierSteps::read(dir, done);
    let from = a.resume.as_deref().zip(done).filter(|_| !out::is_silent());
    let mut earlier = from.map(read).transpose()?.unwrap_or_default();
    let pictures = if let TrainData::Digits(digits) = run.source { Some(digits) } else { None };
    views.open(&run.out.as_ref().map_or("this run".into(), |dir| dir.display().to_string()))?;
    if let Some(dir) = run.out.as_ref().filter(|_| !out::is_silent()) {
        views.add(log::view(&dir.join(LOG))?);
    }
    for line in &mut earlier.0 {
        line.of_pictures = pictures.is_some();
        views.earlier(line);
        line.epoch.iter().for_each(|epoch| views.earlier(epoch));
    }
    // the first epoch of a resumed run may have begun before
    Ok(pictures.zip(done).map(|(digits, done)| {
        let steps = epochs::steps(digits, run.settings.batch_size);
        let seconds = earlier.seconds(&(done - done % steps..done), run.settings.batch_size);
        let whole = earlier.0.iter().filter_map(|line| line.epoch.clone()).collect();
        EpochBefore { whole, epoch: done / steps + 1, seconds, pictures: digits.train.len() }
    }))
}
