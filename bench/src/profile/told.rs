//! A profile as lines, for scripts: every rank's, each number for one step.
use super::{RankProfile, Sum};
use crate::Exposed;
use serde::Serialize;

/// The steps of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct StepsLine {
    /// `steps`.
    pub profile: &'static str,
    /// Which rank.
    pub rank: usize,
    /// Of how many steps all its lines are the mean.
    pub steps: usize,
    /// Milliseconds a step.
    pub ms: f64,
    /// GFLOP/s in f32 that a core can do while as many as there are ranks are at it; null where numbers are not f32.
    pub peak_gflops: Option<f64>,
}

/// A kind of work.
#[derive(Clone, Debug, Serialize)]
pub struct KindLine {
    /// `kind`.
    pub profile: &'static str,
    /// Which rank.
    pub rank: usize,
    /// What it is called.
    pub kind: &'static str,
    /// How much of it.
    #[serde(flatten)]
    pub row: Spending,
}

/// A layer, one way, or, outside of layers, a part of the step.
#[derive(Clone, Debug, Serialize)]
pub struct LayerLine {
    /// `layer`.
    pub profile: &'static str,
    /// Which rank.
    pub rank: usize,
    /// What it is called, a star for each number.
    pub layer: String,
    /// Which way; null outside of layers.
    pub pass: Option<&'static str>,
    /// How many layers have this name.
    pub layers: usize,
    /// How much in all of them.
    #[serde(flatten)]
    pub row: Spending,
}

/// How much of its links' time a step shows, whatever its rank.
#[derive(Clone, Debug, Serialize)]
pub struct LinksLine<'a> {
    /// `links`.
    pub profile: &'static str,
    /// How much.
    #[serde(flatten)]
    pub exposed: &'a Exposed,
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

impl RankProfile {
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
}
