//! Models of one's own whose attention is another: heads of two sizes, of which a part is rotated, and scores
//! with a cap and sinks.
//!
//! ```text
//! a query or key head   | rotated, 2 | plain, 4 |     a value head   | 5 |
//! a score               s = q·k/√9,  then 1.5·tanh(s/1.5),  then the mask,  then a softmax with the sink
//! ```
//!
//! [`Heads`] knows where queries, keys, values and outputs lie, and [`ScoreTerms`] how scores are made.
//! Layers, exchanges, rings, caches, prices and the card's kernels ask them, so that no line of them knows
//! these models.
use kernels::{Heads, ScoreTerms};
use layers::Shape;

/// Returns a model whose value heads are less wide than its key heads, of which a third is rotated.
///
/// ```
/// let heads = outside::two_sizes().heads;
/// assert_eq!([heads.q(), heads.k(), heads.v()].map(|of| of.len()), [24, 12, 10]);
/// assert_eq!((heads.gathered(), heads.rotated), (20, 2));
/// ```
pub fn two_sizes() -> Shape {
    Shape {
        width: 4,
        blocks: 4,
        heads: Heads { value: 5, plain: 0, rotated: 2, ..Heads::new(4, 2, 6) },
        hidden: 4,
        vocabulary: 11,
        ..Shape::LLAMA
    }
}

/// Returns the model whose scores are capped, and divided by another root than that of their features.
pub fn capped() -> Shape {
    Shape { scores: ScoreTerms { divisor: Some(9), cap: Some(1.5), ..ScoreTerms::NONE }, ..two_sizes() }
}

/// Returns the model whose heads have sinks.
pub fn with_sinks() -> Shape {
    Shape { scores: ScoreTerms { sinks: true, ..ScoreTerms::NONE }, ..two_sizes() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::proven::{prices, proves};

    /// Layouts with more tensor and context ranks than KV heads, all attentions over cp, slices of sequences
    /// with a cache, chunks, and states of parameters.
    const LAYOUTS: [&str; 20] = [
        "none",
        "tp=4",
        "tp=2,sp",
        "cp=2",
        "cp=4:ulysses",
        "cp=4:ulysses/2",
        "tp=2,cp=2:ulysses",
        "cp=2:gathered",
        "cp=2:ring",
        "tp=2,cp=2:ring",
        "pp=2",
        "pp=2:seq1f1b/2",
        "pp=2,cp=2:ring",
        "pp=2:dualpipe-v",
        "dp=2:zero1",
        "dp=2:zero2",
        "dp=2:zero3",
        "recompute",
        "pp=2,recompute:full/2",
        "tp=2,pp=2,dp=2:zero2,recompute",
    ];

    /// Kills: the size of a value taken for that of a key in an exchange, a cache, a ring; plain features
    /// that turn; angles of another number of features.
    #[test]
    fn heads_of_two_sizes_equal_the_unsplit_model_in_every_layout() {
        proves(two_sizes(), &LAYOUTS);
    }

    /// Kills: a cap after the mask, or on one pass alone; a divisor of all heads.
    #[test]
    fn capped_scores_equal_the_unsplit_model_in_every_layout() {
        proves(capped(), &LAYOUTS);
    }

    /// Kills: a sink that counts once on each rank or hop, the sink of another head, gradients of a part of
    /// the heads or of the tokens.
    #[test]
    fn sinks_equal_the_unsplit_model_in_every_layout() {
        proves(with_sinks(), &LAYOUTS);
    }

    /// Kills: outputs as wide as queries, a running softmax that nobody counts.
    #[test]
    fn what_is_priced_is_what_is_held() {
        for shape in [two_sizes(), capped(), with_sinks()] {
            prices(shape, &LAYOUTS);
        }
    }
}
