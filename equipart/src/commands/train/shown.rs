//! Views of a training run.
use super::TrainArgs;
use super::log::EarlierSteps;
use crate::cli::watch::ProgressWatch;
use crate::views::plot::{Plot, Points};
use crate::views::progress::Progress;
use crate::views::{Views, csv, json, log};
use parallel::{Result, bail};
use run::train::TrainRun;
use run::train::data::TrainData;
use run::train::epochs::{self, EpochBefore};
use std::path::Path;
use std::sync::Arc;

impl TrainArgs {
    /// Opens the views that flags ask for; files only where results are `reported`. A resumed run is given
    /// its folder and its steps so far. Returns the part of its first epoch that it has shown before, too.
    ///
    /// # Errors
    /// If a file cannot be read or written, or two views want the same.
    pub(super) fn views(
        &self,
        run: &TrainRun,
        watch: &Arc<ProgressWatch>,
        is_json: bool,
        (reported, resumed): (bool, Option<(&Path, usize)>),
    ) -> Result<(Views, Option<EpochBefore>)> {
        if let Some(both) = self.csv.as_ref().filter(|csv| self.plot.as_ref() == Some(*csv)) {
            bail!("--csv and --plot both want {}; give each a file of its own", both.display());
        }
        let read = |(dir, done): (&Path, usize)| EarlierSteps::read(dir, done);
        let earlier = resumed.map(read).transpose()?.unwrap_or_default();
        let pictures = if let TrainData::Digits(digits) = run.source { Some(digits) } else { None };
        let (mut views, epochs) = (Views::default(), pictures.is_some());
        let kind = if epochs { "epoch" } else { "step" };
        let file = |flag: &Option<_>| flag.clone().filter(|_| reported);
        let (folder, csv) = (file(&run.out), file(&self.csv));
        views.add(Some(Progress { watch: watch.clone(), quiet: is_json, epochs }));
        views.add(is_json.then(|| json::view(kind)));
        views.add(folder.map(|dir| log::view("step", &dir, &earlier.text)).transpose()?);
        views.add(csv.map(|file| csv::view(kind, &file)).transpose()?);
        let name = run.out.as_ref().map_or("this run".into(), |dir| dir.display().to_string());
        views.add(file(&self.plot).map(|file| Plot::new("step", file, Points::of(name, &earlier.steps))));
        // the first epoch of a resumed run may have begun before
        let before = pictures.zip(run.resume.as_ref()).map(|(digits, state)| {
            let (steps, done) = (epochs::steps(digits, run.settings.batch_size), state.steps());
            let seconds = earlier.seconds(&(done - done % steps..done), run.settings.batch_size);
            EpochBefore { epoch: done / steps + 1, seconds, pictures: digits.train.len() }
        });
        Ok((views, before))
    }
}
