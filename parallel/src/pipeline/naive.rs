//! Naive model parallelism, `pp=N:naive`: one microbatch at a time, through all stages and back.
//!
//! ```text
//! stages 3, microbatches 2        rank 0   F0 ·  ·  ·  ·  B0 F1 ·  ·  ·  ·  B1
//!                                 rank 1   ·  F0 ·  ·  B0 ·  ·  F1 ·  ·  B1 ·
//!                                 rank 2   ·  ·  F0 B0 ·  ·  ·  ·  F1 B1 ·  ·
//! ```
//!
//! One of the `K` ranks works at a time: a rank waits (K − 1)(F + B) for each of the `M` microbatches. It
//! holds what one microbatch saved. Microbatches save no time here; under `GPipe` they do.
//!
//! Source: the starting point of Huang et al., "GPipe", §2.3 and Figure 2(b), arXiv:1811.06965.
//! Chapter: schedules.
use super::phases::{B, F, about, in_order, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::{StrategyInfo, Tries};

/// Naive model parallelism.
pub struct NaivePipeline;

static ABOUT: StrategyInfo = StrategyInfo {
    tries: Tries::Never,
    ..about(["naive model parallelism", "naive", "Huang et al., arXiv:1811.06965", "schedules.md"])
};

impl Schedule for NaivePipeline {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        phases(plan, [(plan.microbatches, &[F, B])], in_order(rank))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, _| 1,
            waiting: |_| Waiting::Exactly([1; 3]),
            bubble: Some(|plan, times| Some(plan.microbatches as f64 * one_after_the_other(plan, times))),
        })
    }
}
