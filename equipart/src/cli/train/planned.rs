//! `--layout auto`: the planner's layout for a number of ranks, with a run's step: the same sequences in the
//! same microbatches, so the same training. The planner tries no schedule with stale weights.
use super::TrainArgs;
use super::auto::{Amount, LayoutFlag};
use crate::cli::args::ModelName;
use crate::cli::processes;
use crate::cli::searching::SearchNotes;
use crate::terminal::out;
use layers::counted;
use models::TrainableModel;
use parallel::dtype::DtypeName;
use parallel::{Batch, Layout, Result, bail, with_dtype};
use plan::Machine;
use plan::search::LayoutSearch;
use plan::step::TrainingJob;
use plan::watch::SearchEvent;
use plan::weighed::Goal;
use run::event::Observer;
use run::train::data::TrainData;
use run::train::settings::Settings;
use run::train::state::State;
use std::path::PathBuf;
use std::sync::Arc;

/// Search for the layout of a run.
pub(crate) struct LayoutPlanner {
    job: TrainingJob,
    batch: Batch,
    machine: Arc<Machine>,
    memory: usize,
    dtype: DtypeName,
}

impl LayoutPlanner {
    /// Returns the best layout of exactly this number of ranks, if there is one.
    pub(crate) fn find(&self, ranks: usize, observer: &Observer) -> Option<Layout> {
        let Self { job, machine, .. } = self;
        let microbatches = Some(self.batch.microbatches().len());
        let goal = Goal::Time;
        let notes = SearchNotes::new(observer);
        let watch = &|event: &SearchEvent| notes.watch(event);
        let memory = self.memory;
        let search = LayoutSearch { job, machine, memory, ranks, microbatches, goal, all: false, watch };
        let found = with_dtype!(self.dtype, D => search.find::<D>());
        notes.done();
        let mut best = found.best.into_iter().map(|of| of.layout);
        best.find(|layout| self.batch.deals(&layout.tokens()).is_ok()) // sequences may be of any length
    }
    /// Returns the step that a layout must keep, in words.
    pub(crate) fn step(&self) -> String {
        format!(
            "the model and its steps of {} in {}",
            counted(self.job.batch_size, "sequence"),
            counted(self.batch.microbatches().len(), "microbatch")
        )
    }
}

impl TrainArgs {
    /// Returns the layout; the unsplit one as long as none is planned.
    pub(crate) fn layout(&self) -> Layout {
        if let LayoutFlag::Layout(layout) = self.layout { layout } else { Layout::UNSPLIT }
    }
    /// Adds the table of `--schedule` to the layout, if there is one.
    ///
    /// # Errors
    /// If the table does not fit, or the layout is still to be planned and a flag is for one layout only.
    pub(crate) fn schedule_layout(&mut self) -> Result<()> {
        match self.layout {
            LayoutFlag::Auto => self.can_be_planned("--layout auto"),
            LayoutFlag::Layout(layout) => {
                self.layout = LayoutFlag::Layout(self.table.on(layout)?);
                Ok(())
            }
        }
    }
    /// Refuses a machine where nothing is planned for it: in a run that no launcher began.
    ///
    /// # Errors
    /// If one is given for a layout that is written.
    pub(crate) fn plans_for_machine(&self) -> Result<()> {
        let named = self.machine.as_deref().map(Machine::named).transpose()?;
        let is_launched = processes::launch().is_ok_and(|launch| launch.is_some());
        if named.is_some() && self.layout != LayoutFlag::Auto && !is_launched {
            bail!("--machine is for --layout auto and launch --min-ranks, which plan; leave it out");
        }
        Ok(())
    }
    /// Refuses flags that go with one layout only, where `flag` plans another.
    ///
    /// # Errors
    /// If one is given.
    pub(crate) fn can_be_planned(&self, flag: &str) -> Result<()> {
        let auto = Some(Amount::Auto);
        let given = [
            ("schedule", self.table.schedule.is_some()),
            ("split", self.ranks.each.split.is_some()),
            ("link", !self.network.link.is_empty()),
            ("offload-dir", self.offload.folder.is_some()),
            ("batch-size auto", self.batch_size == auto),
            ("microbatches auto", self.microbatches == auto),
        ];
        let resumes = |dir: &PathBuf| State::read(dir).is_ok_and(|state| state.model.text.is_none());
        if self.model == Some(ModelName::Mlp) || self.resume.as_ref().is_some_and(resumes) {
            bail!(
                "{flag} plans a layout, which needs a model of text; a plain classifier has none planned; write one"
            );
        }
        match given.iter().find(|(_, given)| *given) {
            Some((other, _)) => {
                bail!("{flag} plans a layout, but --{other} is for one layout; leave one of them out")
            }
            None => Ok(()),
        }
    }
    /// Returns the search for layouts of the run of these flags.
    ///
    /// # Errors
    /// If the model, the data, the checkpoint or the machine cannot be read, or a size is invalid.
    pub(crate) fn planner(&self) -> Result<LayoutPlanner> {
        let resume = self.resume.as_deref().map(State::read).transpose()?;
        let (model, learnt) = self.begin_with(resume.as_ref())?;
        let settings = resume.map_or_else(|| self.settings_for(&learnt), |state| Ok(state.settings))?;
        self.planner_of(&settings, &model, &learnt)
    }
    fn planner_of(
        &self,
        settings: &Settings,
        model: &TrainableModel,
        learnt: &TrainData,
    ) -> Result<LayoutPlanner> {
        learnt.check(settings, model.positions())?;
        let machine = Arc::new(Machine::named(self.machine.as_deref().unwrap_or("h100"))?);
        let memory = self.ranks.each.limit.unwrap_or(machine.memory.value as usize);
        let batch = learnt.batch(settings, 0, &mut None)?;
        Ok(LayoutPlanner {
            job: settings.job(&settings.design(model)),
            batch,
            machine,
            memory,
            dtype: settings.number,
        })
    }
    /// Returns the layout of these flags, planned for the number of processes if it is auto.
    ///
    /// # Errors
    /// If no launcher started processes, or no layout has so many ranks.
    pub(crate) fn planned(
        &self,
        settings: &Settings,
        model: &TrainableModel,
        learnt: &TrainData,
        observer: &Observer,
    ) -> Result<Layout> {
        if self.layout != LayoutFlag::Auto {
            return Ok(self.layout());
        }
        let Some(ranks) = processes::launch()?.map(|launch| launch.ranks) else {
            bail!(
                "--layout auto is for the number of ranks that a launcher starts, but RANK is not set; write a layout, or \
                 start `equipart launch`"
            )
        };
        let planner = self.planner_of(settings, model, learnt)?;
        let Some(layout) = planner.find(ranks, observer) else {
            bail!("no layout of {} fits {}; start fewer", counted(ranks, "rank"), planner.step())
        };
        out::note(&format!("note: --layout auto takes {layout}"));
        Ok(layout)
    }
}
