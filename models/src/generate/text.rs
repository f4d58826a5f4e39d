//! A continued prompt.

use serde::{Deserialize, Serialize};

/// One continued prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Bits", into = "Bits")]
pub struct Text {
    /// Prompt and new ids.
    pub ids: Vec<u32>,
    /// For each new id, the largest change of the logits that chooses no other id (`SampledToken::margin`).
    pub margins: Vec<f64>,
    /// The logits after the prompt.
    pub prompt_logits: Vec<f32>,
}

/// A text with its floats as bits, which JSON does not round.
type Bits = (Vec<u32>, Vec<u64>, Vec<u32>);

impl From<Text> for Bits {
    fn from(Text { ids, margins, prompt_logits }: Text) -> Self {
        let margins = margins.into_iter().map(f64::to_bits).collect();
        (ids, margins, prompt_logits.into_iter().map(f32::to_bits).collect())
    }
}

impl From<Bits> for Text {
    fn from((ids, margins, logits): Bits) -> Self {
        let margins = margins.into_iter().map(f64::from_bits).collect();
        Self { ids, margins, prompt_logits: logits.into_iter().map(f32::from_bits).collect() }
    }
}

impl Text {
    /// Creates a text without new tokens, with room for `most`.
    pub(super) fn new(prompt: &[u32], most: usize) -> Self {
        let mut ids = Vec::with_capacity(prompt.len() + most);
        ids.extend_from_slice(prompt);
        Self { ids, margins: Vec::with_capacity(most), prompt_logits: Vec::new() }
    }
}
