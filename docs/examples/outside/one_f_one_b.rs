//! One forward, one backward (1F1B): a stage begins the backward of a microbatch as soon as it can, so that it holds what few
//! microbatches saved.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 F2 ·  ·  B0 F3 B1 ·  B2 ·  B3
//!                                 rank 1   ·  F0 F1 ·  B0 F2 B1 F3 B2 ·  B3 ·
//!                                 rank 2   ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 ·  ·
//! ```
//!
//! Rank `r` of `K` goes forward K − 1 − r times, then forward and backward by turns. It waits as often as `GPipe`; of the `M`
//! microbatches it holds K − r at once, not M.
//!
//! Source: Narayanan et al., "`PipeDream`", §3.2, arXiv:1806.03377; "Memory-efficient pipeline-parallel DNN training", §3.2
//! (PipeDream-Flush), arXiv:2006.09503.
use comm::Axis;
use layers::{About, Choice, Shared, Sharing, Takes};
use parallel::Schedule;
use parallel::step::{Act, Cell, Plan, Unit};

/// One forward, one backward.
pub struct OneForwardOneBackward;

static ABOUT: About = About {
    name: "1F1B",
    axis: Some(Axis::Pp),
    choice: Choice::Schedule,
    word: "own-1f1b",
    takes: Takes::Nothing,
    shares: |design, sizes| {
        let over = sizes.along(Axis::Pp);
        vec![Shared { what: "blocks", size: design.parts(), over, by: Sharing::AtLeastOne }]
    },
    paper: "Narayanan et al., arXiv:2006.09503",
    chapter: None,
    hints: &[("", "a microbatch goes back as soon as it can: look whose activations it meets")],
};

impl Schedule for OneForwardOneBackward {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let (all, ahead) = (plan.microbatches, (plan.ranks - 1 - rank).min(plan.microbatches));
        let cell = move |act, m: usize| Cell { act, of: Unit::new(rank, m as u32) };
        let first = (0..ahead).map(move |m| cell(Act::F, m));
        let turns = (ahead..all).flat_map(move |m| [cell(Act::F, m), cell(Act::B, m - ahead)]);
        Box::new(first.chain(turns).chain((all - ahead..all).map(move |m| cell(Act::B, m))))
    }
}
