//! Breakdown of the time of training steps, by kind of work and by layer, read from a trace: a rank's events
//! are nested, and each nanosecond counts for the innermost event alone. A table's rows therefore add up to
//! the steps; time that no event covers has a row as well.
//!
//! | file | holds |
//! |---|---|
//! | `taken.rs` | numbers of steps that are profiled |
//! | `steps.rs` | the steps of a trace, and the event of each of their nanoseconds |
mod steps;
#[cfg(test)]
mod tests;

pub use crate::taken::{MOST, WARM};

use crate::Exposed;
use comm::{Event, TraceRun};
use parallel::{Network, Result, bail};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tensor::{Direction, KernelKind};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkKind {
    /// Kernels of a kind.
    On(KernelKind),
    /// Collective calls: moving and adding.
    Collective,
    /// Collective calls: waiting for other ranks.
    Wait,
    /// Anything without a name.
    Other,
}

impl WorkKind {
    /// All kinds, in the order of every report.
    pub const ALL: [WorkKind; 9] = [
        WorkKind::On(KernelKind::Product),
        WorkKind::On(KernelKind::Attention),
        WorkKind::On(KernelKind::Norm),
        WorkKind::On(KernelKind::ElementWise),
        WorkKind::On(KernelKind::EmbeddingAndLoss),
        WorkKind::On(KernelKind::Optimizer),
        WorkKind::Collective,
        WorkKind::Wait,
        WorkKind::Other,
    ];
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            WorkKind::On(kind) => kind.name(),
            WorkKind::Collective => "collective",
            WorkKind::Wait => "wait",
            WorkKind::Other => "other",
        }
    }
}

/// Time and amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Total time.
    pub time: Duration,
    /// Number of kernels, calls and waits of a kind, or of passes through a layer.
    pub calls: usize,
    /// Floating point operations of kernels that count them.
    pub flops: u64,
    /// Time of these kernels.
    pub computing: Duration,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.time += other.time;
        self.calls += other.calls;
        self.flops += other.flops;
        self.computing += other.computing;
    }
    /// GFLOP/s while it computed; `None` if operations are not counted.
    pub fn gflops(&self) -> Option<f64> {
        (self.flops > 0).then(|| self.flops as f64 / self.computing.as_secs_f64() / 1e9)
    }
}

/// Time of a layer in one direction; layers whose names differ only in numbers are one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerTime {
    /// Name with a star for each number: `blocks.*.attention.qkv`. Outside of layers, name of a part of the
    /// step.
    pub name: String,
    /// Number of layers of the row; 0 outside of layers.
    pub layers: usize,
    /// Direction; `None` outside of layers.
    pub pass: Option<Direction>,
    /// Sum without the layers within.
    pub sum: Totals,
}

impl LayerTime {
    fn is(&self, row: &LayerTime) -> bool {
        (&self.name, self.pass) == (&row.name, row.pass)
    }
}

/// Breakdown of the time of one rank's steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankProfile {
    /// Number of steps.
    pub steps: usize,
    /// Total time of the steps.
    pub time: Duration,
    /// Sums by kind: all of [`WorkKind::ALL`].
    pub kinds: Vec<(WorkKind, Totals)>,
    /// Sums by layer, in program order.
    pub layers: Vec<LayerTime>,
}

impl RankProfile {
    /// Merges all ranks' steps: means are over the ranks.
    #[must_use]
    pub fn together(ranks: &[Self]) -> Self {
        let mut sum = ranks[0].clone();
        for rank in &ranks[1..] {
            sum.steps += rank.steps;
            sum.time += rank.time;
            sum.kinds.iter_mut().zip(&rank.kinds).for_each(|((_, sum), (_, more))| sum.add(more));
            for row in &rank.layers {
                match sum.layers.iter_mut().find(|known| known.is(row)) {
                    Some(known) => known.sum.add(&row.sum),
                    None => sum.layers.push(row.clone()),
                }
            }
        }
        sum
    }
    /// Returns this rank's sum for the layers of a row, which may be another rank's.
    #[must_use]
    pub fn layer(&self, row: &LayerTime) -> Option<&Totals> {
        self.layers.iter().find(|own| own.is(row)).map(|own| &own.sum)
    }
    /// Milliseconds a step.
    #[must_use]
    pub fn ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3 / self.steps as f64
    }
    /// Converts a sum to values a step, beside this peak if there is one.
    #[must_use]
    pub fn row(&self, sum: &Totals, peak: Option<f64>) -> RowValues {
        let (ms, gflops) = (sum.time.as_secs_f64() * 1e3 / self.steps as f64, sum.gflops());
        let of_peak = gflops.zip(peak).map(|(gflops, peak)| gflops / peak);
        RowValues { ms, share: ms / self.ms(), calls: sum.calls as f64 / self.steps as f64, gflops, of_peak }
    }
    /// Builds the profile of a rank's events, in trace order.
    fn of(events: &[Event]) -> Self {
        let mut all = Self {
            steps: 0,
            time: Duration::ZERO,
            kinds: WorkKind::ALL.map(|spent| (spent, Totals::default())).to_vec(),
            layers: Vec::new(),
        };
        let mut layers = steps::Layers::default();
        for step in steps::steps(events) {
            all.steps += 1;
            all.time += step[0].took();
            steps::spent(step, |owner, spent, sum| {
                let (_, total) = all.kinds.iter_mut().find(|(kind, _)| *kind == spent).expect("all kinds");
                let quiet = Totals { calls: 0, ..sum };
                // other time is of a layer or a part of the step itself
                let is_work = spent != WorkKind::Other;
                total.add(if is_work { &sum } else { &quiet });
                layers.add(owner, if is_work { &quiet } else { &sum });
            });
        }
        all.layers = layers.in_order();
        all
    }
}

/// A line of a profile for scripts, tagged with its kind: every rank's, each value for one step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "profile", rename_all = "lowercase")]
pub enum ProfileLine<'a> {
    /// The steps of a rank.
    Steps {
        /// The rank.
        rank: usize,
        /// Number of steps that all lines of the rank are the mean of.
        steps: usize,
        /// Milliseconds a step.
        ms: f64,
        /// Peak GFLOP/s of a core in f32, while one core a rank is busy; null if the dtype is not f32.
        peak_gflops: Option<f64>,
    },
    /// A kind of work.
    Kind {
        /// The rank.
        rank: usize,
        /// Name of the kind.
        kind: &'static str,
        /// Values of the kind.
        #[serde(flatten)]
        row: RowValues,
    },
    /// A layer in one direction, or, outside of layers, a part of the step.
    Layer {
        /// The rank.
        rank: usize,
        /// Name, with a star for each number.
        layer: &'a str,
        /// Direction; null outside of layers.
        pass: Option<&'static str>,
        /// Number of layers of this name.
        layers: usize,
        /// Values of all these layers.
        #[serde(flatten)]
        row: RowValues,
    },
    /// Exposed communication time of a step, over all ranks.
    Links(&'a Exposed),
}

/// Values of a row, for one step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowValues {
    /// Milliseconds a step.
    pub ms: f64,
    /// Fraction of the step's time: 1 is all of it.
    pub share: f64,
    /// Number of calls in a step.
    pub calls: f64,
    /// GFLOP/s of its products and attention, while they ran; null if there are none.
    pub gflops: Option<f64>,
    /// GFLOP/s as a fraction of the peak; null also if the dtype is not f32.
    pub of_peak: Option<f64>,
}

/// Returns the profile of each rank of a run over this network; each process has recorded its own.
///
/// # Errors
/// If no step of the run was profiled, or a process is lost.
pub fn of(run: &TraceRun, network: &Network) -> Result<Vec<RankProfile>> {
    let here = network.processes.as_ref().map_or(0..run.ranks.len(), |all| all.rank()..all.rank() + 1);
    let ranks: Vec<_> = run.ranks[here].iter().map(|events| RankProfile::of(events)).collect();
    if ranks.iter().any(|rank| rank.steps == 0) {
        bail!("{} has no profiled step", run.name);
    }
    Ok(network.of_processes(ranks)?.concat())
}
