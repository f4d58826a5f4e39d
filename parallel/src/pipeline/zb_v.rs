//! ZB-V, `pp=N:zb-v`: two chunks per rank, down the ranks and up again, with weight halves in place of waits.
//!
//! ```text
//! stages 2, microbatches 4 (small letters: the rank's second chunk)
//! rank 0   F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 ·
//! rank 1   ·  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3
//! ```
//!
//! Chunk `c` of 2K is on rank c or 2K − 1 − c: rank 0 has embedding and head, and a microbatch's backward
//! begins on the rank where its forward ended. A rank holds what 2K chunks saved, as much as `K` stages of
//! 1F1B. Where F = I = W and 2K − 1 ≤ M, no rank waits from its first cell to its last. Fewer microbatches
//! `M` run as the first `M` of 2K − 1.
//!
//! Source: Qi et al., "Zero bubble pipeline parallelism", §6, arXiv:2401.10241v1. Chapter: zero bubble.
use super::phases::{F, F2, I, I2, W, W2, about, blocks, on_v, phases, rank_on_v};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::StrategyInfo;

/// ZB-V.
pub struct ZbV;

static ABOUT: StrategyInfo = StrategyInfo {
    shares: blocks::<2>,
    ..about(["ZB-V", "zb-v", "Qi et al., arXiv:2401.10241", "zero-bubble.md"])
};

impl Schedule for ZbV {
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
        let after = plan.ranks - rank; // number of ranks from this one on
        let more = plan.microbatches.saturating_sub(2 * plan.ranks - 1);
        let row: [(usize, &[_]); 9] = [
            (2 * after - 1, &[F]),
            (rank, &[F2, F]),
            (after, &[F2, I2, W2]),
            (more + rank, &[F, I, W, F2, I2, W2]),
            (after - 1, &[I, W, F2, I2, W2]),
            (rank, &[I, I2]),
            (after, &[I, W]),
            (rank, &[W2]),
            (rank, &[W]),
        ];
        phases(plan, row, on_v(rank, plan))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| 2 * plan.ranks,
            waiting: |_| Waiting::Exactly([1, 3, 2]),
            bubble: Some(|plan, [f, i, w]| {
                (f == i && i == w && 2 * plan.ranks - 1 <= plan.microbatches).then_some(0.0)
            }),
        })
    }
}
