//! ZB-H1, `pp=N:zb-h1`: 1F1B whose weight halves fill the end of the step.
//!
//! ```text
//! stages 3, microbatches 5   rank 0   F0 F1 F2 ·  ·  I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
//!                            rank 1   ·  F0 F1 ·  I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
//!                            rank 2   ·  ·  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4
//! ```
//!
//! Other ranks wait only for the input half `I`. On rank `r` of `K` the weight half `W` of a microbatch comes
//! `r` microbatches late: a rank with fewer forwards ahead delays as many weight halves, so that each holds
//! what `K` microbatches saved, as the first rank does under 1F1B.
//! A rank waits (K − 1)(F + I − W) where W ≤ F and K ≤ M.
//!
//! Source: Qi et al., "Zero bubble pipeline parallelism", §2.1, arXiv:2401.10241. Chapter: zero bubble.
use super::phases::{F, I, W, about, in_order, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// ZB-H1.
pub struct ZbH1;

static ABOUT: StrategyInfo = about(["ZB-H1", "zb-h1", "Qi et al., arXiv:2401.10241", "zero-bubble.md"]);

impl Schedule for ZbH1 {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        late(rank, plan, 1)
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| plan.ranks,
            waiting: |_| Waiting::Exactly([1, 2, 1]),
            bubble: Some(|plan, [f, i, w]| {
                (plan.ranks <= plan.microbatches).then(|| (plan.ranks - 1) as f64 * (i + (f - w).max(0.0)))
            }),
        })
    }
}

/// Returns the row of a rank that runs `per` more forwards ahead for each rank after it, and whose weight
/// halves come `per` microbatches later for each rank before it.
pub(super) fn late(rank: usize, plan: &Plan, per: usize) -> Box<dyn Iterator<Item = Cell>> {
    let (ahead, late) = (per * (plan.ranks - 1 - rank), per * rank);
    let all_three = plan.microbatches.saturating_sub(ahead + late).max(1);
    let row: [(usize, &[_]); 5] =
        [(ahead, &[F]), (late, &[F, I]), (all_three, &[F, I, W]), (ahead, &[I, W]), (late, &[W])];
    phases(plan, row, in_order(rank))
}
