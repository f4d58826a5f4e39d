//! A profile as lines, for scripts: every rank's, each number for one step.
use super::{RankProfile, Sum};
use crate::Exposed;
use serde::Serialize;

/// A line of a profile, named by its kind.
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
