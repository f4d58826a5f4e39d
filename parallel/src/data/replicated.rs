//! Data parallelism, `dp=N`: every rank has the whole model (or its tensor share) and its own sequences of each
//! microbatch; gradients are addends, summed once a step.
//!
//! ```text
//! dW = Σ_d dW_d      all-reduce, once a step, as many elements as parameters
//! ```
//!
//! By default a parameter is [`Summed`](crate::Placed::Summed) along this axis, so there is nothing to build here: who
//! deals sequences and sums gradients stands in `parallel/src/trainer.rs`.
//!
//! Source: Li et al., "PyTorch Distributed", §2, arXiv:2006.15704. Chapter: 8.
use crate::model::strategy::{About, Key, Strategy};
use comm::Axis;
use kernels::Kernels;

/// Data parallelism.
pub struct DataParallel;

static ABOUT: About = About {
    name: "data parallelism",
    key: Key::Ranks(Axis::Dp),
    splits: "sequences of every microbatch",
    shares: |_| vec![],
    paper: "Li et al., arXiv:2006.15704",
    chapter: Some("ranks-and-collectives.md"),
    hints: &[
        ("loss", "the loss is a mean over the targets of the whole step: each rank gives its addend of it"),
        (
            "gradient of",
            "gradients are addends of one sum over data ranks: no mean of means, and once a step",
        ),
        ("norm²", "the norm is that of the summed gradient, the same on every data rank"),
        ("", "microbatches are cut first and each is dealt over data ranks, so numbers of sequences stay"),
    ],
};

impl<D: Kernels> Strategy<D> for DataParallel {
    fn about(&self) -> &'static About {
        &ABOUT
    }
}
