//! Interleaved 1F1B, `pp=N:interleaved/V`: `V` chunks per rank, a round of `K` microbatches through each.
//!
//! ```text
//! stages 2, chunks 2, microbatches 4 (small letters: the rank's second chunk)
//! rank 0   F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 ·  b2 ·  b3 B2 B3
//! rank 1   ·  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 ·
//! ```
//!
//! Chunk `c` is on rank c mod K, so a microbatch goes round the ranks `V` times. A rank waits for 1/V of a
//! stage: (K − 1)(F + B)/V where `K` divides `M`. The price: `V` times the messages, and the activations of
//! 2(K − 1 − r) + (V − 1)K + 1 chunks on rank `r`. Where `K` does not divide `M`, the last round has fewer
//! microbatches.
//!
//! Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
//! Megatron-LM", §2.2, arXiv:2104.04473. Chapter: schedules.
use super::phases::{B, F, USUAL, about, chunks, in_rounds, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::{NumberArgument, StrategyInfo, Tries};

/// Interleaved 1F1B.
pub struct Interleaved;

static ABOUT: StrategyInfo = StrategyInfo {
    takes: NumberArgument::Optional("chunks of each rank"),
    tries: Tries::Always(&[2, 4]),
    shares: chunks,
    ..about(["interleaved 1F1B", "interleaved", "Narayanan et al., arXiv:2104.04473", "schedules.md"])
};

impl Schedule for Interleaved {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn plan(&self, ranks: usize, microbatches: usize, number: Option<usize>) -> Plan {
        Plan { chunks: number.unwrap_or(USUAL), ..Plan::whole(ranks, microbatches) }
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let Plan { ranks, chunks, microbatches, .. } = *plan;
        let passes = microbatches.next_multiple_of(ranks) * chunks;
        let ahead = passes.min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks);
        let row: [(usize, &[_]); 3] = [(ahead, &[F]), (passes - ahead, &[F, B]), (ahead, &[B])];
        phases(plan, row, in_rounds(rank, plan, ranks))
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |rank, plan| 2 * (plan.ranks - 1 - rank) + (plan.chunks - 1) * plan.ranks + 1,
            waiting: |plan| match plan.chunks {
                1 => Waiting::Exactly([1, 2, 2]),
                _ => Waiting::AtMost([plan.ranks.div_ceil(2).max(2) + 2; 3]),
            },
            bubble: Some(|plan, times| {
                plan.microbatches.is_multiple_of(plan.ranks).then(|| one_after_the_other(plan, times))
            }),
        })
    }
}
