//! Type of the strategies that deal tokens, and the description that all of them share.
use layers::{Choice, Design, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule, Stretches, TokenShards};

/// A way to deal the tokens of a sequence over context ranks.
#[derive(Debug)]
pub struct Dealing {
    /// Its description.
    pub about: StrategyInfo,
    /// Function from a rank to its tokens.
    pub stretches: Stretches,
}

/// Description that all of them share.
pub(super) const DEALT: StrategyInfo = StrategyInfo {
    shares: tokens,
    chapter: Some("context-parallelism.md"),
    hints: &[
        ("loss", "the loss is a mean over all targets of the step: each rank gives the sum of its tokens"),
        ("gradient of", "gradients are partial sums over context ranks, too: each has other tokens"),
        (
            "texts",
            "positions are those of the whole sequence, and the last token's logits come from its rank",
        ),
        ("", "every token is on exactly one rank, and keeps its position"),
    ],
    ..StrategyInfo::of(Some(TokenShards::CONTEXT), Choice::Dealing)
};

/// An example of a classifier is one token, which ranks cannot share.
fn tokens(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let one = matches!(design, Design::Classifier { .. });
    let shared = DividedSize {
        what: "token of an example",
        size: 1,
        over: sizes.along(TokenShards::CONTEXT),
        by: DivisionRule::Equally,
    };
    one.then_some(shared).into_iter().collect()
}
