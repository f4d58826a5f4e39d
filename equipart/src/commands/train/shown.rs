//! Views of a training run.
use super::log::EarlierSteps;
use crate::cli::train::TrainArgs;
use crate::terminal::out;
use crate::terminal::watch::ProgressWatch;
use crate::views::progress::Progress;
use crate::views::{Views, log};
use parallel::Result;
use run::train::data::TrainData;
use run::train::epochs::{self, EpochBefore};
use run::train::state::State;
use run::train::{StepLine, TrainRun};
use std::sync::Arc;

impl TrainArgs {
    /// Opens the views that flags ask for. Gives the run the epochs, and the part of its first epoch, that it
    /// has shown before, if it resumes one.
    ///
    /// # Errors
    /// If a file cannot be read or written, or two views want the same.
    pub(super) fn views(&self, run: &mut TrainRun, watch: &Arc<ProgressWatch>, json: bool) -> Result<Views> {
        let done = run.resume.as_ref().map(State::steps);
        let read = |(dir, done): (_, usize)| EarlierSteps::read(dir, done);
        let from = self.resume.as_deref().zip(done).filter(|_| !out::is_silent());
        let earlier = from.map(read).transpose()?.unwrap_or_default();
        let pictures = if let TrainData::Digits(digits) = run.source { Some(digits) } else { None };
        let name = run.out.as_ref().map_or("this run".into(), |dir| dir.display().to_string());
        let without = if pictures.is_some() { StepLine::KIND } else { "" };
        let mut views = self.views.open(json, &name, without)?;
        views.add(Progress { watch: watch.clone(), quiet: json, epochs: pictures.is_some() });
        if let Some(dir) = run.out.as_ref().filter(|_| !out::is_silent()) {
            views.add(log::view(StepLine::KIND, dir)?);
        }
        for line in &earlier.0 {
            views.earlier(line);
            line.epoch.iter().for_each(|epoch| views.earlier(epoch));
        }
        // the first epoch of a resumed run may have begun before
        run.epoch_before = pictures.zip(done).map(|(digits, done)| {
            let steps = epochs::steps(digits, run.settings.batch_size);
            let seconds = earlier.seconds(&(done - done % steps..done), run.settings.batch_size);
            let whole = earlier.0.iter().filter_map(|line| line.epoch.clone()).collect();
            EpochBefore { whole, epoch: done / steps + 1, seconds, pictures: digits.train.len() }
        });
        Ok(views)
    }
}
