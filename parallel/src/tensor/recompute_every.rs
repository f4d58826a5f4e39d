//! Recomputation of some blocks, `recompute:full/N`: blocks whose number in the model is a multiple of N keep
//! only their input, the others all that their backward needs. `recompute:full/1` is
//! [`recompute`](super::recompute).
//!
//! ```text
//! kept of L blocks    ⌈L/N⌉·B·D elements, and all that the other L − ⌈L/N⌉ blocks keep
//! ```
//!
//! A block's number is that in the whole model, so the choice does not depend on the stages of a pipeline.
//!
//! Source: Chen et al., "Training deep nets with sublinear memory cost", §4, arXiv:1604.06174.
//! Chapter: fitting a model.
use super::recompute::again;
use kernels::Kernels;
use layers::{Block, Builder, Choice, NumberArgument, Strategy, StrategyInfo, Tries};

/// Recomputation of every `N`th block.
pub struct RecomputeEvery;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "recomputation of every Nth block",
    word: "full",
    takes: NumberArgument::Required("distance between recomputed blocks"),
    tries: Tries::Always(&[2]),
    paper: "Chen et al., arXiv:1604.06174",
    chapter: Some("fitting-a-model.md"),
    hints: &[("", "a block is recomputed if its number in the whole model is a multiple of N")],
    ..StrategyInfo::of(None, Choice::Recompute)
};

impl<D: Kernels> Strategy<D> for RecomputeEvery {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn block(&self, at: &Builder<D>, number: usize, block: Block<D>) -> Block<D> {
        let every = at.numbers[Choice::Recompute as usize] as usize;
        if number.is_multiple_of(every) { again(block) } else { block }
    }
}
