//! Where the time of training steps goes, by kind of work and by layer. It is read from a trace: what a rank did lies
//! within what it was a part of, and each nanosecond counts for the innermost alone. So a table's rows add up to the
//! steps, and what nothing covers is a row as well.
//!
//! | file | holds |
//! |---|---|
//! | `steps.rs` | the steps of a trace, and what each nanosecond of them was spent on |
//! | `taken.rs` | of which steps of a run it is |
mod steps;
mod taken;
#[cfg(test)]
mod tests;

pub use taken::{MOST, WARM, is_taken};

use crate::Exposed;
use comm::{Event, Run};
use parallel::{Result, bail};
use serde::Serialize;
use std::time::Duration;
use tensor::{Direction, KernelKind};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spent {
    /// In kernels of a kind.
    On(KernelKind),
    /// In calls to other ranks, moving and adding.
    Collective,
    /// In such calls, until others came.
    Wait,
    /// In nothing that has a name.
    Other,
}

impl Spent {
    /// All of them, in the order of every report.
    pub const ALL: [Spent; 9] = [
        Spent::On(KernelKind::Product),
        Spent::On(KernelKind::Attention),
        Spent::On(KernelKind::Norm),
        Spent::On(KernelKind::ElementWise),
        Spent::On(KernelKind::EmbeddingAndLoss),
        Spent::On(KernelKind::Optimizer),
        Spent::Collective,
        Spent::Wait,
        Spent::Other,
    ];
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Spent::On(kind) => kind.name(),
            Spent::Collective => "collective",
            Spent::Wait => "wait",
            Spent::Other => "other",
        }
    }
}

/// Time, and what was done in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// All of it.
    pub time: Duration,
    /// How often: kernels, calls and waits of a kind; passes through a layer.
    pub calls: usize,
    /// Floating point operations of kernels that count them.
    pub flops: u64,
    /// The time of these kernels.
    pub computing: Duration,
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        self.time += other.time;
        self.calls += other.calls;
        self.flops += other.flops;
        self.computing += other.computing;
    }
    /// GFLOP/s while it computed; none where operations are not counted.
    pub fn gflops(&self) -> Option<f64> {
        (self.flops > 0).then(|| self.flops as f64 / self.computing.as_secs_f64() / 1e9)
    }
}

/// What was spent in a layer, one way; layers of a name but for its numbers are one.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTime {
    /// The name, a star for each number: `blocks.*.attention.qkv`. Outside of layers, that of a part of the step.
    pub name: String,
    /// How many layers these are; none outside of layers.
    pub layers: usize,
    /// Which way; none outside of layers.
    pub pass: Option<Direction>,
    /// Without the layers within.
    pub sum: Sum,
}

impl LayerTime {
    fn is(&self, row: &LayerTime) -> bool {
        (&self.name, self.pass) == (&row.name, row.pass)
    }
}

/// Where the time of one rank's steps went.
#[derive(Clone, Debug, PartialEq)]
pub struct RankProfile {
    /// How many steps.
    pub steps: usize,
    /// How long they took together.
    pub time: Duration,
    /// By kind: all of [`Spent::ALL`].
    pub kinds: Vec<(Spent, Sum)>,
    /// By layer, in program order.
    pub layers: Vec<LayerTime>,
}

impl RankProfile {
    /// All ranks' steps as one: means are of the ranks.
    #[must_use]
    pub fn together(ranks: &[Self]) -> Self {
        let mut all = ranks[0].clone();
        for rank in &ranks[1..] {
            all.steps += rank.steps;
            all.time += rank.time;
            all.kinds.iter_mut().zip(&rank.kinds).for_each(|((_, sum), (_, more))| sum.add(more));
            for row in &rank.layers {
                match all.layers.iter_mut().find(|known| known.is(row)) {
                    Some(known) => known.sum.add(&row.sum),
                    None => all.layers.push(row.clone()),
                }
            }
        }
        all
    }
    /// What this rank spent in the layers of a row, which may be another rank's.
    #[must_use]
    pub fn layer(&self, row: &LayerTime) -> Option<&Sum> {
        self.layers.iter().find(|own| own.is(row)).map(|own| &own.sum)
    }
    /// Milliseconds of a step.
    #[must_use]
    pub fn ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3 / self.steps as f64
    }
    /// A part of the steps, beside this peak if there is one.
    #[must_use]
    pub fn row(&self, sum: &Sum, peak: Option<f64>) -> Spending {
        let (ms, gflops) = (sum.time.as_secs_f64() * 1e3 / self.steps as f64, sum.gflops());
        let of_peak = gflops.zip(peak).map(|(gflops, peak)| gflops / peak);
        Spending { ms, share: ms / self.ms(), calls: sum.calls as f64 / self.steps as f64, gflops, of_peak }
    }
    /// Of a rank's events, as a trace has them.
    fn of(events: &[Event]) -> Self {
        let mut all = Self {
            steps: 0,
            time: Duration::ZERO,
            kinds: Spent::ALL.map(|spent| (spent, Sum::default())).to_vec(),
            layers: Vec::new(),
        };
        let mut layers = steps::Layers::default();
        for step in steps::steps(events) {
            all.steps += 1;
            all.time += step[0].took();
            steps::spent(step, |owner, spent, sum| {
                let (_, total) = all.kinds.iter_mut().find(|(kind, _)| *kind == spent).expect("all kinds");
                let quiet = Sum { calls: 0, ..sum };
                let is_work = spent != Spent::Other; // else it is a layer or a part of the step itself
                total.add(if is_work { &sum } else { &quiet });
                layers.add(owner, if is_work { &quiet } else { &sum });
            });
        }
        all.layers = layers.in_order();
        all
    }
}

/// A line of a profile for scripts, named by its kind: every rank's, each number for one step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "profile", rename_all = "lowercase")]
pub enum ProfileLine<'a> {
    /// The steps of a rank.
    Steps {
        /// Which rank.
        rank: usize,
        /// Of how many steps all its lines are the mean.
        steps: usize,
        /// Milliseconds a step.
        ms: f64,
        /// GFLOP/s in f32 that a core can do while as many as there are ranks are at it; null where numbers are not f32.
        peak_gflops: Option<f64>,
    },
    /// A kind of work.
    Kind {
        /// Which rank.
        rank: usize,
        /// What it is called.
        kind: &'static str,
        /// How much of it.
        #[serde(flatten)]
        row: Spending,
    },
    /// A layer, one way, or, outside of layers, a part of the step.
    Layer {
        /// Which rank.
        rank: usize,
        /// What it is called, a star for each number.
        layer: &'a str,
        /// Which way; null outside of layers.
        pass: Option<&'static str>,
        /// How many layers have this name.
        layers: usize,
        /// How much in all of them.
        #[serde(flatten)]
        row: Spending,
    },
    /// How much of its links' time a step shows, whatever its rank.
    Links(&'a Exposed),
}

/// What was spent, of a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spending {
    /// Milliseconds a step.
    pub ms: f64,
    /// Of the step's time: 1 is all of it.
    pub share: f64,
    /// How often in a step.
    pub calls: f64,
    /// GFLOP/s of its products and attention, while they ran; null where there are none.
    pub gflops: Option<f64>,
    /// The same as a part of the peak; null too where numbers are not f32.
    pub of_peak: Option<f64>,
}

/// Where the time of a run's steps went, by rank.
///
/// # Errors
/// If the run has no step of which a profile was taken.
pub fn of(run: &Run) -> Result<Vec<RankProfile>> {
    let ranks: Vec<_> = run.ranks.iter().map(|events| RankProfile::of(events)).collect();
    if ranks.iter().any(|rank| rank.steps == 0) {
        bail!("{} has no step of which a profile was taken", run.name);
    }
    Ok(ranks)
}
