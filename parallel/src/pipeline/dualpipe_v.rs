//! DualPipeV, `pp=N:dualpipe-v`: two chunks per rank, down the ranks and up; a forward beside each backward.
//!
//! ```text
//! stages 2, microbatches 4 (small letters: the rank's second chunk)
//! rank 0   F0 F1 F2 f0 i0 w0 f1 F3 b1 f2 B0 b2 f3 B1 b3 I2 W2 I3 W3
//! rank 1   ·  F0 f0 F1 f1 F2 b0 f2 B0 F3 b1 f3 B1 b2 B2 i3 I3 w3 W3
//! ```
//!
//! `DualPipe` sends microbatches from both ends, with the model twice. Cut in half it has the model once:
//! chunk `c` of 2K on rank c or 2K − 1 − c. In mid-step each forward is beside a backward of the other chunk,
//! so that messages travel during computation. Backwards are whole except at the ends, where weight halves
//! fill waits. A rank holds what 2K + 1 chunks saved. Fewer than 2K microbatches run as the first of 2K.
//!
//! Source: DeepSeek-AI, "DeepSeek-V3", §3.2.1, arXiv:2412.19437 (`DualPipe`); Qi et al., Sea AI Lab,
//! "DualPipe could be better without the dual" (cut in half). Chapter: zero bubble.
use super::phases::{B, B2, F, F2, I, I2, W, W2, about, blocks, on_v, phases, rank_on_v};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// `DualPipeV`.
pub struct DualPipeV;

static ABOUT: StrategyInfo = StrategyInfo {
    shares: blocks::<2>,
    ..about(["DualPipeV", "dualpipe-v", "DeepSeek-AI, arXiv:2412.19437", "zero-bubble.md"])
};

impl Schedule for DualPipeV {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn plan(&self, ranks: usize, microbatches: usize, _: Option<usize>) -> Plan {
        Plan { chunks: 2, ..Plan::whole(ranks, microbatches) }
    }
    fn rank_of(&self, chunk: usize, plan: &Plan) -> usize {
        rank_on_v(chunk, plan)
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        // numbers of ranks up to this one, and after it
        let (from, after) = (rank + 1, plan.ranks - 1 - rank);
        let whole = from / 2;
        let first = whole.min(after);
        let row: [(usize, &[_]); 12] = [
            (2 * after, &[F]),
            (from, &[F, F2]),
            (after, &[I2, W2, F2]),
            (plan.microbatches.saturating_sub(2 * plan.ranks) + from, &[F, B2, F2, B]),
            (after, &[B2, F2, B]),
            (whole, &[B2, B]),
            (from % 2, &[B2, I]),
            (whole, &[I2, I]),
            (first, &[W2, I]),
            (after - first, &[W, I]),
            (whole - first, &[W2]),
            (from - whole + first, &[W]),
        ];
        phases(plan, row, on_v(rank, plan))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| 2 * plan.ranks + 1,
            waiting: |_| Waiting::Exactly([2; 3]),
            bubble: None,
        })
    }
}
