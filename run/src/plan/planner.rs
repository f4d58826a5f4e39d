//! The layout of a training run for a number of ranks, with the run's step: the same sequences in the same
//! microbatches, so the same training. The planner tries no schedule with stale weights.
use super::notes::SearchNotes;
use crate::event::Observer;
use crate::train::data::TrainData;
use crate::train::settings::Settings;
use layers::counted;
use models::TrainableModel;
use parallel::dtype::DtypeName;
use parallel::{Batch, Layout, Result, with_dtype};
use plan::Machine;
use plan::search::LayoutSearch;
use plan::step::TrainingJob;
use plan::watch::SearchEvent;
use plan::weighed::Goal;
use std::sync::Arc;

/// Search for the layout of a run.
pub struct LayoutPlanner {
    job: TrainingJob,
    batch: Batch,
    machine: Arc<Machine>,
    memory: usize,
    dtype: DtypeName,
}

impl LayoutPlanner {
    /// Prepares the search for layouts of a run on this data, for devices of this memory, or of the
    /// machine's.
    ///
    /// # Errors
    /// If the machine is not known, or a size is invalid.
    pub fn new(
        settings: &Settings,
        model: &TrainableModel,
        learnt: &TrainData,
        machine: &str,
        memory: Option<usize>,
    ) -> Result<Self> {
        learnt.check(settings, model.positions())?;
        let machine = Arc::new(Machine::named(machine)?);
        Ok(Self {
            job: settings.job(&settings.design(model)),
            batch: learnt.batch(settings, 0, &mut None)?,
            memory: memory.unwrap_or(machine.memory.value as usize),
            machine,
            dtype: settings.number,
        })
    }
    /// Returns the best layout of exactly this number of ranks, if there is one.
    pub fn find(&self, ranks: usize, observer: &Observer) -> Option<Layout> {
        let Self { job, machine, .. } = self;
        let microbatches = Some(self.batch.microbatches().len());
        let goal = Goal::Time;
        let notes = SearchNotes::new(observer, Arc::default());
        let watch = &|event: &SearchEvent| notes.watch(event);
        let memory = self.memory;
        let search = LayoutSearch { job, machine, memory, ranks, microbatches, goal, all: false, watch };
        let found = with_dtype!(self.dtype, D => search.find::<D>());
        notes.done();
        let mut best = found.best.into_iter().map(|of| of.layout);
        best.find(|layout| self.batch.deals(&layout.tokens()).is_ok()) // sequences may be of any length
    }
    /// Returns the step that a layout must keep, in words.
    pub fn step(&self) -> String {
        format!(
            "the model and its steps of {} in {}",
            counted(self.job.batch_size, "sequence"),
            counted(self.batch.microbatches().len(), "microbatch")
        )
    }
}
