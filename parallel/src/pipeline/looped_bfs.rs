//! Looped breadth-first, `pp=N:looped-bfs/V`: `V` chunks per rank, all microbatches through each.
//!
//! ```text
//! stages 2, chunks 2, microbatches 4 (small letters: the rank's second chunk)
//! rank 0   F0 F1 F2 F3 f0 f1 f2 f3 ·  ·  b0 b1 b2 b3 B0 B1 B2 B3
//! rank 1   ·  F0 F1 F2 F3 f0 f1 f2 f3 b0 b1 b2 b3 B0 B1 B2 B3 ·
//! ```
//!
//! Chunk `c` is on rank c mod K. A rank waits (K − 1)(F + B)/V, as under interleaved 1F1B, and holds what all
//! `M` microbatches saved, as under `GPipe`. A chunk's weights are used in one run forward and one run
//! backward; sharded data ranks gather them for each run. Messages from the last rank to the first wait there
//! until it begins its next chunk, M − K + 1 of them where 2K ≤ M, and so do messages from the first to the
//! last in backward.
//!
//! Source: Lamy-Poirier, "Breadth-first pipeline parallelism", §3.1, arXiv:2211.05953. Chapter: schedules.
use super::phases::{B, F, USUAL, about, chunks, in_rounds, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::{NumberArgument, StrategyInfo, Tries};

/// Looped breadth-first.
pub struct LoopedBfs;

static ABOUT: StrategyInfo = StrategyInfo {
    takes: NumberArgument::Optional("chunks of each rank"),
    tries: Tries::Always(&[2, 4]),
    shares: chunks,
    ..about(["looped breadth-first", "looped-bfs", "Lamy-Poirier, arXiv:2211.05953", "schedules.md"])
};

impl Schedule for LoopedBfs {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn plan(&self, ranks: usize, microbatches: usize, number: Option<usize>) -> Plan {
        Plan { chunks: number.unwrap_or(USUAL), ..Plan::whole(ranks, microbatches) }
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let passes = plan.chunks * plan.microbatches;
        phases(plan, [(passes, &[F]), (passes, &[B])], in_rounds(rank, plan, plan.microbatches))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |_, plan| plan.chunks * plan.microbatches,
            waiting: |plan| {
                // messages for the next chunk, which the first rank has not begun
                let early = (plan.microbatches + 1).saturating_sub(plan.ranks).max(1);
                Waiting::Exactly(if plan.chunks == 1 { [1; 3] } else { [early, 1, early] })
            },
            bubble: Some(|plan, times| {
                (plan.ranks <= plan.microbatches).then(|| one_after_the_other(plan, times))
            }),
        })
    }
}
