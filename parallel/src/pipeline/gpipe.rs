//! `GPipe`, `pp=N`: all microbatches forward, then all backward.
//!
//! Source: Huang et al., "GPipe", §2.2, arXiv:1811.06965.
use super::Schedule;
use comm::Axis;
use layers::{About, Choice, Shared, Sharing, Takes};

/// `GPipe`.
pub struct GPipe;

static ABOUT: About = About {
    name: "GPipe",
    axis: Some(Axis::Pp),
    choice: Choice::Schedule,
    word: "gpipe",
    takes: Takes::Nothing,
    shares: |shape, sizes| {
        let over = sizes.along(Axis::Pp);
        vec![Shared { what: "blocks", size: shape.blocks, over, by: Sharing::AtLeastOne }]
    },
    paper: "Huang et al., arXiv:1811.06965",
    chapter: None,
    hints: &[
        ("loss", "the loss is of the last stage; the other stages add 0"),
        (
            "gradient of",
            "a stage's gradients are of all microbatches, and complete when the last one is back",
        ),
        (
            "",
            "each stage has consecutive blocks; what it receives is what the stage before it sent of this microbatch",
        ),
    ],
};

impl Schedule for GPipe {
    fn about(&self) -> &'static About {
        &ABOUT
    }
}
