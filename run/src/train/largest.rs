//! The largest batch that memory holds.
use super::data::TrainData;
use super::run::TrainRun;
use super::settings::Settings;
use crate::in_device;
use parallel::dtype::RunDevice;
use parallel::price::largest::{LargestBatch, Search, Unknown};
use parallel::{Layout, Result, budget};
use tensor::Cpu;

impl TrainRun<'_> {
    /// Returns a report on the largest batch that memory holds, the same on all ranks: each process takes
    /// part, with its own free memory.
    ///
    /// # Errors
    /// If not even the smallest batch is within the memory limit: the smallest limit that works.
    pub fn largest(&self, unknown: Unknown) -> Result<LargestBatch> {
        in_device!((self.settings.device, self.settings.number), D => self.largest_in::<D>(unknown))
    }
    fn largest_in<D: RunDevice>(&self, unknown: Unknown) -> Result<LargestBatch> {
        let layout = &self.layout;
        let &Settings { batch_size, microbatches, .. } = &self.settings;
        let peak = |layout: &Layout, [batch_size, microbatches]: [usize; 2]| {
            self.peak::<D>(layout, &Settings { batch_size, microbatches, ..self.settings.clone() })
        };
        let sequences = match (unknown, self.source) {
            (Unknown::Microbatches, _) => batch_size,
            (Unknown::BatchSize, TrainData::Digits(digits)) => digits.train.len(),
            (Unknown::BatchSize, _) => self.settings.most_sequences(),
        };
        let room = budget::room::<D::Place>([self.network.here(layout), layout.ranks()]);
        let search = Search { layout, room, unknown, numbers: [sequences, microbatches], peak: &peak };
        let mine = search.find()?;
        let world = self.network.untraced().world(layout, "the largest batch")?;
        let found = world.run(|_: Cpu<f32>, mesh| self.network.of_all(&mesh, mine))?;
        search.report(unknown.of_all(found.concat()).unwrap_or(mine), &self.model.design)
    }
}
