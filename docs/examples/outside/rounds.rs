//! `GPipe` in rounds: two microbatches forward and back, then the next two, so that no rank holds what more than two saved.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 ·  ·  ·  ·  B0 B1 F2 F3 ·  ·  ·  ·  B2 B3
//!                                 rank 1   ·  F0 F1 ·  ·  B0 B1 ·  ·  F2 F3 ·  ·  B2 B3 ·
//!                                 rank 2   ·  ·  F0 F1 B0 B1 ·  ·  ·  ·  F2 F3 B2 B3 ·  ·
//! ```
//!
//! A rank of `K` waits K − 1 forwards and K − 1 backwards in each of the M/2 rounds: `GPipe` does in one round, which is why it
//! holds what all `M` microbatches saved. An odd `M` ends with a round of one. 1F1B holds as little and waits as `GPipe` does.
//!
//! Source: Huang et al., "`GPipe`", §2.2, arXiv:1811.06965, applied to parts of a batch, as gradients are accumulated.
use comm::Axis;
use layers::{About, Choice, Shared, Sharing, Takes};
use parallel::Schedule;
use parallel::pipeline::phases::{B, F, in_order, phases};
use parallel::step::{Cell, Plan};

/// `GPipe` in rounds of two microbatches.
pub struct InRounds;

static ABOUT: About = About {
    name: "GPipe in rounds",
    axis: Some(Axis::Pp),
    choice: Choice::Schedule,
    word: "rounds",
    takes: Takes::Nothing,
    shares: |design, sizes| {
        let over = sizes.along(Axis::Pp);
        vec![Shared { what: "blocks", size: design.parts(), over, by: Sharing::AtLeastOne }]
    },
    paper: "Huang et al., arXiv:1811.06965",
    chapter: None,
    hints: &[("", "a round begins when the one before is back: look whose activations it meets")],
};

impl Schedule for InRounds {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        phases(plan, [(plan.microbatches.div_ceil(2), &[F, F, B, B])], in_order(rank))
    }
}
