//! What a comparison says: a row for each kind of work under each layout.
use parallel::measure::PeakBytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// Which work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Continuing prompts.
    Inference,
    /// Training steps.
    Training,
}

/// The first token of a text that differs between two layouts, though the choice was as good as a tie.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tie {
    /// Which text.
    pub sequence: usize,
    /// Which of its tokens.
    pub token: usize,
    /// How much a logit difference had to change for another choice.
    pub margin: f64,
    /// How much rounding may have changed it.
    pub bound: f64,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct LayoutRow {
    /// Which work.
    pub workload: Workload,
    /// A readable label.
    pub name: String,
    /// The layout.
    pub layout: String,
    /// Of the work: all new tokens, or one step.
    pub seconds: f64,
    /// Of that, until all prompts were read; null in training.
    pub prefill_seconds: Option<f64>,
    /// New tokens, or tokens learnt, a second.
    pub tokens_per_second: f64,
    /// Of each rank; in training the step takes inference's place.
    pub peak_bytes: PeakBytes,
    /// Bytes on the wire of all ranks, a generated token or a step.
    pub traffic_bytes: usize,
    /// The field's verdict on this work: in inference on the logits that choose each token, in training on the loss, the
    /// norm, gradients and new weights.
    pub equal: bool,
    /// What the field was given, if not the whole work.
    pub note: Option<String>,
    /// What a panel proves of this layout and this work has none of, in words.
    pub never_ran: Vec<&'static str>,
    /// Whether the texts are those of the unsplit run; null in training.
    pub tokens_equal: Option<bool>,
    /// If not: where they part, where that is a tie.
    pub tie: Option<Tie>,
    /// What the rank that holds the most would hold in each number, as it is priced.
    pub peak_bytes_by_number: BTreeMap<&'static str, usize>,
    /// The largest error against f64 (of logits, or of new weights) ÷ the unsplit run's own.
    pub error_ratio: f64,
}

impl LayoutRow {
    /// Bytes of the work on the rank that holds most.
    #[must_use]
    pub fn most_bytes(&self) -> f64 {
        self.peak_bytes.total.iter().max().copied().unwrap_or(0) as f64
    }
}
