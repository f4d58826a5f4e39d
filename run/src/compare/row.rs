//! Rows of a comparison: one for each workload under each layout.
use crate::event::{CellValue, RecordColumn, RunRecord, column, hidden};
use crate::words::speed;
use parallel::measure::PeakBytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Continuing prompts.
    Inference,
    /// Training steps.
    Training,
}

/// Work of a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// Tokens, of a model of text.
    TokensPerSecond(f64),
    /// Pictures, of a classifier.
    PicturesPerSecond(f64),
}

impl Rate {
    /// Returns the number, without its unit.
    #[must_use]
    pub fn number(self) -> f64 {
        match self {
            Self::TokensPerSecond(number) | Self::PicturesPerSecond(number) => number,
        }
    }
    /// Returns the unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        if let Self::TokensPerSecond(_) = self { "token/s" } else { "pictures/s" }
    }
}

/// The first token of a text that differs between two layouts, although its choice was a tie up to rounding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tie {
    /// Index of the text.
    pub sequence: usize,
    /// Index of the token in the text.
    pub token: usize,
    /// Change of a logit difference that would change the choice.
    pub margin: f64,
    /// Bound on the change that rounding causes.
    pub bound: f64,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct LayoutRow {
    /// Kind of work.
    pub workload: Workload,
    /// Readable label.
    pub name: String,
    /// The layout.
    pub layout: String,
    /// Time of the work, all new tokens or one step: the median of the runs.
    pub seconds: f64,
    /// Half of the distance between the quartiles of the runs, as a fraction of the median; null for fewer
    /// than three runs.
    pub spread: Option<f64>,
    /// Number of measured runs.
    pub runs: usize,
    /// Microbatches of a step; null in inference.
    pub microbatches: Option<usize>,
    /// Seconds until the last run had read all prompts; null in training.
    pub prefill_seconds: Option<f64>,
    /// Speed of the work: new tokens, or training tokens or pictures.
    #[serde(flatten)]
    pub rate: Rate,
    /// Peak bytes of each rank; in training, the step replaces the phases of inference.
    pub peak_bytes: PeakBytes,
    /// Bytes on the wire from all ranks, for a generated token or a step.
    pub traffic_bytes: usize,
    /// Verdict of the field on this work: in inference on the logits that choose each token, in training on
    /// the loss, the norm, gradients and new weights.
    pub equal: bool,
    /// Subject that the field was given instead of the whole work.
    pub note: Option<String>,
    /// Parts of this layout that a panel proves and that this work does not run, in words.
    pub never_ran: Vec<&'static str>,
    /// True if the texts equal those of the unsplit run; null in training.
    pub tokens_equal: Option<bool>,
    /// The first difference of the texts, if it is a tie.
    pub tie: Option<Tie>,
    /// Peak bytes of the rank that holds the most, in each dtype, as priced.
    pub peak_bytes_by_number: BTreeMap<&'static str, usize>,
    /// Dtype other than the run's in which tables of people give the peak.
    #[serde(skip)]
    pub other_number: &'static str,
    /// The largest error against f64 (of logits, or of new weights) ÷ the unsplit run's own error; in f64,
    /// where that is 0, ÷ one rounding of the largest value.
    pub error_ratio: f64,
}

impl LayoutRow {
    /// Returns true if the row is equal in the field, its texts equal those of the unsplit run or differ at a
    /// tie, and its error is finite.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.equal && (self.tokens_equal != Some(false) || self.tie.is_some()) && self.error_ratio.is_finite()
    }
    /// Returns true if the row is faster than another by more than the spread of both.
    #[must_use]
    pub fn is_faster(&self, other: &Self) -> bool {
        let (Some(mine), Some(others)) = (self.spread, other.spread) else { return false };
        self.rate.number() * (1.0 - mine) > other.rate.number() * (1.0 + others)
    }
    /// The speed, and the spread of the runs: `17.0k ±3 %`.
    fn speed(&self) -> String {
        let speed = speed(self.rate.number());
        self.spread.map_or(speed.clone(), |part| format!("{speed} ±{:.0} %", 100.0 * part))
    }
    /// The verdict on the texts, in a word.
    fn tokens(&self) -> Option<String> {
        Some(match (self.tokens_equal, &self.tie) {
            (None, _) => return None,
            (Some(true), _) => "equal".into(),
            (Some(false), Some(tie)) => format!("tie at {}", tie.token),
            (Some(false), None) => "DIFFERENT".into(),
        })
    }
    /// Bytes of the work on the rank that holds most.
    #[must_use]
    pub fn most_bytes(&self) -> f64 {
        self.peak_bytes.total.iter().max().copied().unwrap_or(0) as f64
    }
}

impl RunRecord for LayoutRow {
    fn kind(&self) -> &'static str {
        "layout"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let is_text = self.workload == Workload::Inference;
        let (title, per) =
            if is_text { ("Generating text", "a token") } else { ("One training step", "a step") };
        let other = self.peak_bytes_by_number[self.other_number] as u128;
        let error = self.error_ratio;
        let number = |number: Option<f64>| number.map_or(CellValue::None, CellValue::Number);
        let field = if self.equal { "equal" } else { "DIFFERENT" };
        vec![
            (column("name", title), CellValue::word(&self.name)),
            (hidden("workload"), CellValue::word(if is_text { "inference" } else { "training" })),
            (hidden("layout"), CellValue::word(&self.layout)),
            (column("per_second", self.rate.unit()), CellValue::Shown(self.rate.number(), self.speed())),
            (hidden("spread"), number(self.spread)),
            (hidden("seconds"), CellValue::Number(self.seconds)),
            (hidden("runs"), CellValue::Count(self.runs)),
            (column("peak_bytes", "holds"), CellValue::bytes(self.most_bytes() as u128)),
            (column("other_peak_bytes", format!("in {}", self.other_number)), CellValue::bytes(other)),
            (column("traffic_bytes", format!("sent\n{per}")), CellValue::bytes(self.traffic_bytes as u128)),
            (column("field", "field"), CellValue::word(field)),
            (
                column("tokens", "tokens").hidden_if(!is_text),
                self.tokens().map_or(CellValue::None, CellValue::Word),
            ),
            (column("error_ratio", "error"), CellValue::Shown(error, format!("x{error:.2}"))),
        ]
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
            rate: Rate::TokensPerSecond(tokens_per_second),
            peak_bytes: PeakBytes::default(),
            traffic_bytes: 0,
            equal: true,
            note: None,
            never_ran: Vec::new(),
            tokens_equal: None,
            tie: None,
            peak_bytes_by_number: BTreeMap::new(),
            other_number: "bf16",
            error_ratio: 1.0,
        }
    }

    /// Kills: a row that is wrong in only one way and passes; a tie that fails.
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

    /// Kills: a difference within the spread of the runs, on either side, or of rows that ran once.
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
