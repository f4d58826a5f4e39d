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
    /// The time of the work, all new tokens or one step: the median of its runs.
    pub seconds: f64,
    /// Half of the distance between the quartiles of its runs, as a share of the median; null where there are fewer than three.
    pub spread: Option<f64>,
    /// How many runs were measured.
    pub runs: usize,
    /// Microbatches of a step; null in inference.
    pub microbatches: Option<usize>,
    /// Seconds of the last run until all prompts were read; null in training.
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
    /// The largest error against f64 (of logits, or of new weights) ÷ the unsplit run's own; in f64, where that is 0, ÷ one
    /// rounding of the largest number.
    pub error_ratio: f64,
}

impl LayoutRow {
    /// Whether it is equal in the field, its texts are those of the unsplit run or part at a tie, and its numbers are finite.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let tokens = self.tokens_equal != Some(false) || self.tie.is_some();
        self.equal && tokens && self.error_ratio.is_finite()
    }
    /// Whether its tokens a second are more than those of another by more than both spread.
    #[must_use]
    pub fn is_faster(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.spread, other.spread) else { return false };
        self.tokens_per_second * (1.0 - own) > other.tokens_per_second * (1.0 + others)
    }
    /// Bytes of the work on the rank that holds most.
    #[must_use]
    pub fn most_bytes(&self) -> f64 {
        self.peak_bytes.total.iter().max().copied().unwrap_or(0) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tokens_per_second: f64, spread: Option<f64>) -> LayoutRow {
        LayoutRow {
            workload: Workload::Inference,
            name: String::new(),
            layout: String::new(),
            seconds: 1.0,
            spread,
            runs: 9,
            microbatches: None,
            prefill_seconds: None,
            tokens_per_second,
            peak_bytes: PeakBytes::default(),
            traffic_bytes: 0,
            equal: true,
            note: None,
            never_ran: Vec::new(),
            tokens_equal: None,
            tie: None,
            peak_bytes_by_number: BTreeMap::new(),
            error_ratio: 1.0,
        }
    }

    /// Kills: a row that is wrong in one way only and passes; a tie that does not.
    #[test]
    fn a_row_is_wrong_in_each_of_three_ways() {
        let (right, parted) = (row(1.0, None), LayoutRow { tokens_equal: Some(false), ..row(1.0, None) });
        let tie = Some(Tie { sequence: 0, token: 3, margin: 1e-9, bound: 1e-7 });
        assert!(right.is_right() && LayoutRow { tie, ..parted.clone() }.is_right());
        let wrong = [
            LayoutRow { equal: false, ..right.clone() },
            LayoutRow { error_ratio: f64::INFINITY, ..right },
            parted,
        ];
        assert!(wrong.iter().all(|row| !row.is_right()));
    }

    /// Kills: a difference within what runs differ by, on either side, or of rows that ran once.
    #[test]
    fn faster_is_beyond_both_spreads() {
        let standard = row(1000.0, Some(0.1));
        assert!(row(1300.0, Some(0.1)).is_faster(&standard));
        assert!(!row(1150.0, Some(0.1)).is_faster(&standard));
        assert!(!row(1300.0, Some(0.2)).is_faster(&standard));
        assert!(!row(1150.0, Some(0.0)).is_faster(&row(1000.0, Some(0.2))));
        assert!(
            !row(9000.0, None).is_faster(&standard) && !row(9000.0, Some(0.1)).is_faster(&row(1.0, None))
        );
    }
}
