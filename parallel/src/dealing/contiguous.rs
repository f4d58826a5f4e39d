//! Contiguous tokens, `cp=N:contiguous`: rank `r` has the `r`th of N nearly equal pieces of every sequence.
//! Under the causal mask later ranks do more work, since their queries see more keys.
//!
//! Source: Li et al., "Sequence parallelism", §3.2, arXiv:2105.13120.
use super::Dealing;
use comm::Axis;
use layers::{Choice, Design, DividedSize, DivisionRule, Sizes, StrategyInfo, contiguous};

/// Contiguous tokens.
pub static CONTIGUOUS: Dealing = Dealing {
    about: StrategyInfo {
        name: "context parallelism with contiguous tokens",
        word: "contiguous",
        shares: tokens,
        paper: "Li et al., arXiv:2105.13120",
        hints: &[
            (
                "loss",
                "the loss is a mean over all targets of the step: each rank gives the sum of its tokens",
            ),
            ("gradient of", "gradients are partial sums over context ranks, too: each has other tokens"),
            (
                "texts",
                "positions are those of the whole sequence, and the last token's logits come from its rank",
            ),
            ("", "every token is on exactly one rank, and keeps its position"),
        ],
        ..StrategyInfo::of(Some(Axis::Cp), Choice::Dealing)
    },
    stretches: contiguous,
};

/// An example of a classifier is one token, which ranks cannot share.
fn tokens(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let one = matches!(design, Design::Classifier { .. });
    let shared = DividedSize {
        what: "token of an example",
        size: 1,
        over: sizes.along(Axis::Cp),
        by: DivisionRule::Equally,
    };
    one.then_some(shared).into_iter().collect()
}
