//! Data parallelism, `dp=N`: every rank has the whole model (or its tensor share) and its own sequences of each
//! microbatch; each gradient is a partial sum, summed once a step.
//!
//! ```text
//! dW = Σ_d dW_d      all-reduce, once a step, as many elements as parameters
//! ```
//!
//! By default a parameter is [`Partial`](layers::Placed::Partial) along this axis and rests whole, so there is nothing to
//! build here: who deals sequences stands in `batch.rs`, who sums gradients in `trainer.rs`.
//!
//! Source: Li et al., "PyTorch Distributed", §2, arXiv:2006.15704. Chapter: 8.
use super::StateSplit;
use comm::Axis;
use layers::{About, Choice, Rests, Takes};

/// Data parallelism.
pub static REPLICATED: StateSplit = StateSplit {
    about: About {
        name: "data parallelism",
        axis: Some(Axis::Dp),
        choice: Choice::State,
        word: "dp",
        takes: Takes::Nothing,
        shares: |_, _| vec![],
        paper: "Li et al., arXiv:2006.15704",
        chapter: Some("ranks-and-collectives.md"),
        hints: &[
            (
                "loss",
                "the loss is a mean over the targets of the whole step: each rank gives its partial sum of it",
            ),
            (
                "gradient of",
                "gradients are partial sums over data ranks: no mean of means, and once a step",
            ),
            ("norm²", "the norm is that of the summed gradient, the same on every data rank"),
            (
                "",
                "microbatches are cut first and each is dealt over data ranks, so numbers of sequences stay",
            ),
        ],
    },
    rests: Rests::WHOLE,
};
