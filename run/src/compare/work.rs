//! The work of a comparison.
use super::partitioning::Partitioning;
use super::row::LayoutRow;
use super::{batch, compare, report};
use crate::device::DeviceName;
use crate::event::{Observer, RunEvent};
use crate::in_device;
use crate::price::PriceRun;
use crate::train::settings::Settings;
use layers::OptimizerKind;
use models::digits::Digits;
use models::text::Corpus;
use models::{Model, TrainableModel};
use parallel::dtype::DtypeName;
use parallel::{Layout, Network, Result, Sequence, bail};

/// The longest time that a row may be measured: an hour, in seconds.
const LONGEST: f64 = 3600.0;
/// The most microbatches of a step.
const MOST_MICROBATCHES: usize = 1024;

/// A comparison to run.
pub struct Comparison<'a> {
    /// The model.
    pub model: &'a TrainableModel,
    /// Source of prompts and sequences; for a classifier, which does not generate text, its pictures.
    pub data: Data<'a>,
    /// Partitionings besides the unsplit one, which always comes first.
    pub ways: Vec<Partitioning>,
    /// True if training is compared, too.
    pub learns: bool,
    /// Network between the ranks of the timed runs; the checks run without it. In a trace each row is a run.
    pub network: Network,
    /// Number of microbatches of a training step.
    pub microbatches: usize,
    /// The optimizer of a training step.
    pub optimizer: OptimizerKind,
    /// Total seconds that each row is measured; 0 for one run.
    pub seconds: f64,
}

/// Data that the model reads and learns.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// A text.
    Text(&'a Model, &'a Corpus),
    /// Pictures.
    Digits(&'a Digits),
}

impl Comparison<'_> {
    /// Checks the work before anything runs.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn check(&self) -> Result<()> {
        if !(0.0..=LONGEST).contains(&self.seconds) {
            bail!("--seconds is {}; it must be 0 to {LONGEST}", self.seconds);
        }
        if !(1..=MOST_MICROBATCHES).contains(&self.microbatches) {
            bail!("--microbatches is {}; it must be 1 to {MOST_MICROBATCHES}", self.microbatches);
        }
        Ok(())
    }
    /// Runs the comparison in a dtype on a device, and tells its rows.
    ///
    /// # Errors
    /// Those of [`compare`], or of the observer.
    pub fn run(
        &self,
        (device, number): (DeviceName, DtypeName),
        observer: &Observer,
    ) -> Result<Vec<LayoutRow>> {
        self.check()?;
        let rows = in_device!((device, number), D => compare::<D>(self, observer))?;
        rows.iter().try_for_each(|row| observer(&RunEvent::Record(row)))?;
        report::tell(self, number, &rows, observer)?;
        Ok(rows)
    }
    /// The compared training step under a layout, to be priced.
    ///
    /// # Errors
    /// If the data has no step of these sizes.
    pub fn step(&self, layout: &Layout, (device, number): (DeviceName, DtypeName)) -> Result<PriceRun> {
        let batch = batch(self)?;
        let sequences = || batch.microbatches().iter().flatten();
        let settings = Settings {
            seq: sequences().map(Sequence::tokens).max().unwrap_or(1),
            batch_size: sequences().count(),
            microbatches: self.microbatches,
            optimizer: self.optimizer,
            number,
            device,
            ..Settings::default()
        };
        Ok(PriceRun { design: self.model.design.clone(), experts: None, settings, layout: *layout })
    }
    /// The most data ranks of any layout.
    pub(super) fn data_ranks(&self) -> usize {
        self.ways.iter().map(|way| way.layout.tokens().data_ranks()).max().unwrap_or(1)
    }
    /// All ways, each once, an unsplit one first.
    pub(super) fn all_ways(&self) -> Vec<Partitioning> {
        let mut ways: Vec<Partitioning> = Vec::new();
        let first = self.ways.iter().all(|way| way.layout.ranks() > 1).then(|| Layout::default().into());
        for way in first.into_iter().chain(self.ways.iter().copied()) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }
}
