//! ZB-H2, `pp=N:zb-h2`: ZB-H1 with twice as many forwards ahead, so that no rank waits.
//!
//! ```text
//! stages 3, microbatches 5   rank 0   F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
//!                            rank 1   ·  F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
//!                            rank 2   ·  ·  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
//! ```
//!
//! Rank `r` of `K` runs 2(K − r) − 1 forwards before its first backward, and its weight halves come 2r
//! microbatches late. It holds what 2K − 1 microbatches saved, twice as much as under ZB-H1. Where W ≤ F and
//! 2K − 1 ≤ M, it waits (K − 1)(F + I − 2W) from its first cell to its last, and not at all where that is
//! negative. Ranks begin and end one after the other, so only a step whose update waits for no other rank is
//! without a bubble.
//!
//! Source: Qi et al., "Zero bubble pipeline parallelism", §2.2, arXiv:2401.10241. Chapter: zero bubble.
use super::phases::about;
use super::zb_h1;
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// ZB-H2.
pub struct ZbH2;

static ABOUT: StrategyInfo = about(["ZB-H2", "zb-h2", "Qi et al., arXiv:2401.10241", "zero-bubble.md"]);

impl Schedule for ZbH2 {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        zb_h1::late(rank, plan, 2)
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| 2 * plan.ranks - 1,
            waiting: |_| Waiting::Exactly([1, 2, 2]),
            bubble: Some(|plan, [f, i, w]| {
                let each = (f + i - 2.0 * w).max(i - f).max(0.0);
                (2 * plan.ranks - 1 <= plan.microbatches).then(|| (plan.ranks - 1) as f64 * each)
            }),
        })
    }
}
