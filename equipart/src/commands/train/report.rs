//! What a run tells: of each step, of how far it is, and at its end.
use super::epochs::EpochLine;
use layers::LayerCounts;
use serde::Serialize;

/// What is told of a step.
#[derive(Clone, Debug, Serialize)]
pub struct StepLine {
    /// Steps done.
    pub step: usize,
    /// The step's mean loss, before it, in nats a token.
    pub loss: f64,
    /// Tokens learnt a second, since the step before.
    pub tokens_per_second: f64,
    /// Peak bytes so far, of each rank.
    pub peak_bytes: Vec<usize>,
    /// Of the epoch that it ends, if it does.
    #[serde(skip)]
    pub epoch: Option<EpochLine>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step is done.
    Step(&'a StepLine),
    /// So many of these parts of the held-out text are evaluated.
    Evaluated(usize, usize),
}

/// What a run ends with.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Steps done, with those of earlier runs.
    pub steps: usize,
    /// Bits a byte on the held-out text; none if there is none, or it is too short for the data ranks.
    pub held_out_bits_per_byte: Option<f64>,
    /// How often each expert was chosen in the steps of this run.
    pub experts: LayerCounts,
}
