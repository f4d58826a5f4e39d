//! Seq1F1B, `pp=N:seq1f1b/S`: 1F1B over `S` slices of each sequence, forward in order, backward in reverse.
//!
//! ```text
//! stages 2, slices 2, microbatches 3 (a stroke: the second slice)
//! rank 0   F0  F0' F1  ·   B0' F1' B0  F2  B1' F2' B1  ·   B2' B2
//! rank 1   ·   F0  F0' B0' F1  B0  F1' B1' F2  B1  F2' B2' B2  ·
//! ```
//!
//! A slice's tokens attend to the keys and values of the slices before it, and give those a gradient. So a
//! sequence goes backward from its end, and rank `r` of `K` runs S − 1 more forwards than under 1F1B before
//! its first backward. It waits (K − 1)(F + B)/S if slices take equally long, and holds what K − r + S − 1
//! slices saved, each 1/S of a microbatch.
//!
//! Source: Sun et al., "Seq1F1B", §3.2, arXiv:2406.03488. Chapter: slices.
use super::phases::{B, F, USUAL, about, blocks, of_whole_microbatches, one_after_the_other, phases};
use crate::step::{Cell, Claims, PassKind, Plan, Schedule, Task, Waiting};
use layers::{Design, NumberArgument, Sizes, StrategyInfo, Tries};
use ops::DividedSize;

/// Seq1F1B.
pub struct Seq1F1B;

static ABOUT: StrategyInfo = StrategyInfo {
    takes: NumberArgument::Optional("slices of each sequence"),
    tries: Tries::Always(&[2, 4]),
    shares,
    ..about(["Seq1F1B", "seq1f1b", "Sun et al., arXiv:2406.03488", "slices.md"])
};

/// Blocks, and quantities that experts compute over a whole microbatch, which slices cannot share.
fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let alone = of_whole_microbatches(design, sizes.number.unwrap_or(USUAL));
    blocks::<1>(design, sizes).into_iter().chain(alone).collect()
}

impl Schedule for Seq1F1B {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn plan(&self, ranks: usize, microbatches: usize, number: Option<usize>) -> Plan {
        Plan { slices: number.unwrap_or(USUAL), ..Plan::whole(ranks, microbatches) }
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let Plan { ranks, slices, microbatches, .. } = *plan;
        let ahead = ranks - 1 - rank + slices - 1;
        // Slices of whole sequences: of the step's, or of those that the first rank runs forward before its
        // first backward.
        let passes = slices * microbatches.max((ranks + slices - 1).div_ceil(slices));
        let of = move |(act, _), n: usize| {
            let slice = if act == PassKind::F { n % slices } else { slices - 1 - n % slices };
            Task { slice: slice as u16, ..Task::new(rank, (n / slices) as u32) }
        };
        phases(plan, [(ahead, &[F]), (passes - ahead, &[F, B]), (ahead, &[B])], of)
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |rank, plan| plan.ranks - rank + plan.slices - 1,
            waiting: |_| Waiting::Exactly([1, 2, 1]),
            bubble: Some(|plan, times| Some(one_after_the_other(plan, times))),
        })
    }
}
