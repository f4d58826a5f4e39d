//! `GPipe`, `pp=N:gpipe`: all microbatches forward, then all backward.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 F2 F3 ·  ·  ·  ·  B0 B1 B2 B3
//!                                 rank 1   ·  F0 F1 F2 F3 ·  ·  B0 B1 B2 B3 ·
//!                                 rank 2   ·  ·  F0 F1 F2 F3 B0 B1 B2 B3 ·  ·
//! ```
//!
//! Each rank has consecutive blocks. It waits (K − 1) forwards and (K − 1) backwards, of `K` ranks, whatever the number `M` of
//! microbatches: a fraction (K − 1)/(M + K − 1) of the step. What all `M` microbatches saved is held at once; that is what 1F1B
//! changes. A message is an activation, `B·D` elements of a microbatch forth and as many back.
//!
//! Source: Huang et al., "GPipe", §2.2, arXiv:1811.06965. Chapter: none yet.
use super::Schedule;
use crate::step::{Act, Cell, Plan, Unit};
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
    shares: |design, sizes| {
        let (over, what) = (sizes.along(Axis::Pp), if design.shape().is_some() { "blocks" } else { "parts" });
        vec![Shared { what, size: design.parts(), over, by: Sharing::AtLeastOne }]
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
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let microbatches = plan.microbatches as u32;
        let all = move |act| (0..microbatches).map(move |m| Cell { act, of: Unit::new(rank, m) });
        Box::new(all(Act::F).chain(all(Act::B)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a row that depends on the rank, a backward before all forwards, another order of microbatches than the
    /// unsplit model adds them up in.
    #[test]
    fn all_go_forward_then_all_backward() {
        let plan = Plan::whole(3, 4);
        let row = |rank| GPipe.row(rank, &plan).map(|cell| cell.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(row(0), "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3");
        assert_eq!(row(2), "2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3");
    }
}
