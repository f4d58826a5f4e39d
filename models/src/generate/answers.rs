//! Answers of a rank, and whether it works together with other data ranks.
use super::generated::TokenTimes;
use super::text::Text;
use kernels::Kernels;
use layers::Shape;
use ops::AtRest;
use parallel::BuildContext;

/// Answers of a rank to its requests.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) texts: Vec<Text>,
    pub(super) times: Vec<TokenTimes>,
    pub(super) prefill: f64, // seconds until the last prompt was read
}

/// True if data ranks hold experts, or values, for each other: they continue until all have finished.
pub(super) fn together<D: Kernels>(shape: &Shape, at: &BuildContext<D>) -> bool {
    shape.experts.is_some() || at.rests.value != AtRest::Whole
}
