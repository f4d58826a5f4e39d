//! Evaluations during a run, which end it early if they no longer improve.
//!
//! A text's evaluation is its bits a byte on the held-out text, that of pictures the fraction of the test
//! pictures that are wrong after an epoch. Checkpoints keep the evaluations: a resumed run ends where the
//! uninterrupted one does.
use super::data::TrainData;
use super::epochs::EpochLosses;
use layers::counted;
use serde::{Deserialize, Serialize};

/// Evaluations of a run so far. Smaller values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// Steps between evaluations on the held-out text.
    pub every: Option<usize>,
    /// Number of evaluations in a row without a better value that ends the run.
    pub patience: Option<usize>,
    /// The best value so far.
    pub best: Option<f64>,
    /// Number of evaluations since the best one.
    #[serde(default)]
    pub since: usize,
    /// Losses of the epoch that is not over yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochLosses>,
}

impl Evaluations {
    /// Adds the value of an evaluation.
    pub(super) fn add(&mut self, value: f64) {
        match self.best {
            Some(best) if value >= best => self.since += 1,
            _ => (self.best, self.since) = (Some(value), 0),
        }
    }
    /// Returns true if the run ends here.
    pub(crate) fn end(&self) -> bool {
        self.patience.is_some_and(|patience| self.since >= patience)
    }
    /// Returns the reason, in words, if evaluations ended the run.
    pub fn ended(&self, source: &TrainData) -> Option<String> {
        let best = self.best.filter(|_| self.end())?;
        let best = match source {
            TrainData::Digits(_) => format!("{:.2} % right", 100.0 * (1.0 - best)),
            _ => format!("{best:.4} bits a byte"),
        };
        Some(format!("no value better than {best} in the last {}", counted(self.since, "evaluation")))
    }
}
