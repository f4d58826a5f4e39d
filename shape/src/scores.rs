//! Scores of attention: what a model does to the products of queries and keys, besides the mask.
use serde::{Deserialize, Serialize};

/// Scores of a model's attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoreTerms {
    /// Number whose root divides the products; `None`: the features of a key head.
    pub divisor: Option<usize>,
    /// Cap c: a score s becomes c·tanh(s/c). Source: Gemma Team, "Gemma 2", §2, arXiv:2408.00118.
    pub cap: Option<f64>,
    /// True if each query head has a sink: a learned score that counts in its softmax, of a value of 0.
    /// Source: `OpenAI`, "gpt-oss", §2.1, arXiv:2508.10925.
    pub sinks: bool,
}

impl ScoreTerms {
    /// The usual scores.
    pub const NONE: Self = Self { divisor: None, cap: None, sinks: false };
}
