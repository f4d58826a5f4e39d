//! 1F1B, `pp=N` or `pp=N:1f1b`: a stage begins the backward of a microbatch as soon as it can.
//!
//! ```text
//! stages 3, microbatches 4        rank 0   F0 F1 F2 ·  ·  B0 F3 B1 ·  B2 ·  B3
//!                                 rank 1   ·  F0 F1 ·  B0 F2 B1 F3 B2 ·  B3 ·
//!                                 rank 2   ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 ·  ·
//! ```
//!
//! Rank `r` of `K` runs K − 1 − r forwards, then a forward and a backward by turns. It waits as long as under
//! `GPipe`, (K − 1)(F + B), but holds at once what K − r microbatches saved, not all `M`.
//!
//! Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training", §3.2 (PipeDream-Flush),
//! arXiv:2006.09503. Chapter: schedules.
use super::phases::{B, F, about, in_order, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// 1F1B.
pub struct OneForwardOneBackward;

static ABOUT: StrategyInfo = about(["1F1B", "1f1b", "Narayanan et al., arXiv:2006.09503", "schedules.md"]);

impl Schedule for OneForwardOneBackward {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let ahead = plan.ranks - 1 - rank;
        let both = plan.microbatches.saturating_sub(ahead).max(1);
        phases(plan, [(ahead, &[F]), (both, &[F, B]), (ahead, &[B])], in_order(rank))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |rank, plan| plan.ranks - rank,
            waiting: |_| Waiting::Exactly([1, 2, 1]),
            bubble: Some(|plan, times| Some(one_after_the_other(plan, times))),
        })
    }
}
