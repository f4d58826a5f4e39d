//! Scores of attention: what a model does to the products of queries and keys, besides the mask.
use crate::Heads;
use serde::{Deserialize, Serialize};

/// Scores of a model's attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreTerms {
    /// Number whose root divides the products; `None`: the features of a key head.
    pub divisor: Option<usize>,
    /// Factor of the products, besides.
    pub factor: Option<f64>,
    /// Cap c: a score s becomes c·tanh(s/c). Source: Gemma Team, "Gemma 2", §2, arXiv:2408.00118.
    pub cap: Option<f64>,
    /// True if each query head has a sink: a learned score that counts in its softmax, of a value of 0.
    /// Source: `OpenAI`, "gpt-oss", §2.1, arXiv:2508.10925.
    pub sinks: bool,
}

impl ScoreTerms {
    /// The usual scores.
    pub const NONE: Self = Self { divisor: None, factor: None, cap: None, sinks: false };
    /// Returns a sentence on a number of these scores or of their heads that cannot be, if there is one.
    pub(crate) fn conflict(self, heads: Heads) -> Option<String> {
        let Heads { dim, value, plain, rotated, .. } = heads;
        let Self { divisor, factor, cap, .. } = self;
        let turned = plain.saturating_add(rotated);
        let is_bad = |number: &f64| !number.is_normal() || *number < 0.0;
        if value == 0 {
            Some("the number of features of a value head is 0; it must be at least 1".into())
        } else if turned > dim {
            Some(format!(
                "the number of features of a key head up to the last rotated one is {turned}; it must be at most \
                 {dim}, as many as it has"
            ))
        } else if divisor == Some(0) {
            Some("the number whose root divides scores is 0; it must be at least 1".into())
        } else {
            let numbers = [("factor", factor), ("cap", cap)];
            let bad = numbers.into_iter().find_map(|(what, number)| Some((what, number.filter(is_bad)?)));
            bad.map(|(what, x)| format!("the {what} of scores is {x}; it must be a finite number above 0"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a bad number that is taken, and a good one that is refused.
    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let why = |heads: Heads, scores: ScoreTerms| scores.conflict(heads);
        let (heads, scores) = (Heads::new(2, 1, 4), ScoreTerms::NONE);
        assert_eq!(
            why(Heads { value: 9, plain: 1, rotated: 3, ..heads }, ScoreTerms { cap: Some(0.1), ..scores }),
            None
        );
        let refused =
            |heads, scores, says: &str| assert!(why(heads, scores).unwrap().contains(says), "{says}");
        refused(Heads { value: 0, ..heads }, scores, "is 0; it must be at least 1");
        refused(Heads { plain: 2, rotated: 3, ..heads }, scores, "is 5; it must be at most 4");
        refused(Heads { plain: usize::MAX, ..heads }, scores, "it must be at most 4");
        refused(heads, ScoreTerms { divisor: Some(0), ..scores }, "is 0; it must be at least 1");
        for cap in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
            refused(heads, ScoreTerms { cap: Some(cap), ..scores }, "the cap of scores is");
            let terms = ScoreTerms { factor: Some(cap), ..scores };
            refused(heads, terms, "it must be a finite number above 0");
        }
    }
}
