//! `--batch-size auto` and `--microbatches auto`: the largest batch that memory holds.
use super::data::TrainData;
use super::flags::TrainArgs;
use super::run::TrainRun;
use super::settings::Settings;
use crate::device::in_device;
use parallel::dtype::RunDevice;
use parallel::price::largest::{LargestBatch, Search, Unknown};
use parallel::{Layout, Result, bail, budget};
use std::str::FromStr;
use tensor::Cpu;

/// A number, or auto: the number that memory decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// The number that memory decides.
    Auto,
    /// A number.
    Number(usize),
}

impl Amount {
    /// Returns the number, if it is one.
    pub(crate) fn number(self) -> Option<usize> {
        if let Self::Number(n) = self { Some(n) } else { None }
    }
}

impl FromStr for Amount {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Number)
            .map_err(|_| format!("{text:?} is not a number of 1 or more; write one, or auto"))
    }
}

/// Returns the name of the flag that gives this number.
pub(super) fn flag(unknown: Unknown) -> &'static str {
    if unknown == Unknown::BatchSize { "batch-size" } else { "microbatches" }
}

impl TrainArgs {
    /// Returns the number of a step that memory decides, if a flag is auto.
    ///
    /// # Errors
    /// If both flags are auto, or a table has the number.
    pub(crate) fn unknown(&self) -> Result<Option<Unknown>> {
        let autos = [self.batch_size, self.microbatches].map(|amount| amount == Some(Amount::Auto));
        match (autos, self.layout().table()) {
            ([true, true], _) => bail!("--batch-size and --microbatches are both auto; give one a number"),
            ([_, true], Some(_)) => {
                bail!("--microbatches is auto, but the table of --schedule has the number; leave it out")
            }
            ([true, _], _) => Ok(Some(Unknown::BatchSize)),
            ([_, true], _) => Ok(Some(Unknown::Microbatches)),
            _ => Ok(None),
        }
    }
}

impl TrainRun<'_> {
    /// Returns a report on the largest batch that memory holds, the same on all ranks: each process takes
    /// part, with its own free memory.
    ///
    /// # Errors
    /// If not even the smallest batch is within the memory limit: the smallest limit that works.
    pub(crate) fn largest(&self, unknown: Unknown) -> Result<LargestBatch> {
        in_device!((self.settings.device, self.settings.number), D => self.largest_in::<D>(unknown))
    }
    fn largest_in<D: RunDevice>(&self, unknown: Unknown) -> Result<LargestBatch> {
        let (layout, &Settings { batch_size, microbatches, .. }) = (&self.layout, &self.settings);
        let peak = |layout: &Layout, [batch_size, microbatches]: [usize; 2]| {
            self.peak::<D>(layout, &Settings { batch_size, microbatches, ..self.settings.clone() })
        };
        let sequences = match (unknown, self.source) {
            (Unknown::Microbatches, _) => batch_size,
            (Unknown::BatchSize, TrainData::Digits(digits)) => digits.train.len(),
            (Unknown::BatchSize, _) => self.settings.most_sequences(),
        };
        let room = budget::room::<D::Place>([self.network.here(layout), layout.ranks()]);
        let numbers = [sequences, microbatches];
        let search = Search { layout, room, unknown, numbers, peak: &peak };
        let mine = search.find()?;
        let world = self.network.untraced().world(layout, "the largest batch")?;
        let all = world.run(|_: Cpu<f32>, mesh| self.network.of_all(&mesh, mine))?;
        search.report(unknown.of_all(all.concat()).unwrap_or(mine), &self.model.design)
    }
}
