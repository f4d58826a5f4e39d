//! `PipeDream`, `pp=N:pipedream`: 1F1B without a flush; each microbatch is an update, with stashed weights.
//!
//! ```text
//! stages 3                rank 0   F0 F1 F2 ·  ·  ·  B0 U0 F3 B1 U1 F4 B2 U2 ..
//!                         rank 1   ·  F0 F1 ·  B0 U0 F2 B1 U1 F3 B2 U2 F4 B3 ..
//!                         rank 2   ·  ·  F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3 ..
//! w_r(n + 1) = w_r(n) − lr·∇_r f(w_0(v_0), .., w_{K−1}(v_{K−1}))      v_r = max(0, n − (K − 1 − r))
//! ```
//!
//! Microbatch `n` goes forward with the latest weights of each rank, and backward with the same: rank `r` of
//! `K` stashes the K − r versions of microbatches in flight. The pipeline stays full from step to step, so
//! ranks wait only at its beginning and its end. In return ranks read versions of different age.
//!
//! Source: Harlap et al., "`PipeDream`", §3.3 (weight stashing), arXiv:1806.03377. Neighbour:
//! [`pipedream_vertical`](super::pipedream_vertical). Chapter: stale weights.
use super::phases::{B, F, U, about, in_order, one_after_the_other, phases};
use crate::step::{Cell, Claims, Plan, Schedule, Waiting};
use layers::{StrategyInfo, Tries};

/// `PipeDream`.
pub struct PipeDream;

static ABOUT: StrategyInfo = StrategyInfo {
    tries: Tries::Never,
    ..about(["PipeDream", "pipedream", "Harlap et al., arXiv:1806.03377", "stale-weights.md"])
};

impl Schedule for PipeDream {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let ahead = plan.ranks - 1 - rank;
        let steady = plan.microbatches.saturating_sub(ahead).max(1);
        phases(plan, [(ahead, &[F]), (steady, &[F, B, U]), (ahead, &[B, U])], in_order(rank))
    }
    fn updates_each(&self) -> bool {
        true
    }
    fn version(&self, Cell { of, .. }: Cell, plan: &Plan) -> usize {
        (of.microbatch as usize).saturating_sub(plan.ranks - 1 - of.chunk as usize)
    }
    fn versions(&self, rank: usize, plan: &Plan) -> usize {
        plan.ranks - rank
    }
    fn carries(&self, plan: &Plan) -> usize {
        plan.ranks - 1
    }
    fn claims(&self) -> Option<Claims> {
        Some(Claims {
            saved: |rank, plan| plan.ranks - rank,
            waiting: |_| Waiting::Exactly([1, 2, 1]),
            bubble: Some(|plan, times| Some(one_after_the_other(plan, times))),
        })
    }
}
