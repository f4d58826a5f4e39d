//! `GPipe`, `pp=N:gpipe`: all microbatches forward, then all backward.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 F2 F3 ·  ·  ·  ·  B0 B1 B2 B3
//!                                 rank 1   ·  F0 F1 F2 F3 ·  ·  B0 B1 B2 B3 ·
//!                                 rank 2   ·  ·  F0 F1 F2 F3 B0 B1 B2 B3 ·  ·
//! ```
//!
//! Each rank has consecutive blocks. With `K` ranks, each waits (K − 1) forwards and (K − 1) backwards,
//! whatever the number `M` of microbatches: a fraction (K − 1)/(M + K − 1) of the step. It holds what all `M`
//! microbatches saved at once, which 1F1B avoids. A message is an activation: `B·D` elements per microbatch
//! forward, and as many backward.
//!
//! Source: Huang et al., "GPipe", §2.2, arXiv:1811.06965. Chapter: schedules.
use super::phases::{B, F, about, in_order, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// `GPipe`.
pub struct GPipe;

static ABOUT: StrategyInfo = about(["GPipe", "gpipe", "Huang et al., arXiv:1811.06965", "schedules.md"]);

impl Schedule for GPipe {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let microbatches = plan.microbatches;
        phases(plan, [(microbatches, &[F]), (microbatches, &[B])], in_order(rank))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| plan.microbatches,
            waiting: |_| Waiting::Exactly([1; 3]),
            bubble: Some(|plan, times| Some(one_after_the_other(plan, times))),
        })
    }
}
