//! `PipeDream` with vertical sync, `pp=N:pipedream-vertical`: a microbatch reads the same version on all
//! ranks.
//!
//! ```text
//! w_r(n + 1) = w_r(n) − lr·∇_r f(w_0(v), .., w_{K−1}(v))              v = max(0, n − (K − 1))
//! ```
//!
//! Cells run in `PipeDream`'s order. Microbatch `n` reads on every rank the version that was the latest of
//! rank 0 when it entered there. So gradients are those of one model, K − 1 updates old on all ranks, and
//! every rank holds K versions.
//!
//! Source: Harlap et al., "`PipeDream`", §3.3 (vertical sync), arXiv:1806.03377. Neighbour:
//! [`pipedream`](super::pipedream). Chapter: stale weights.
use super::phases::about;
use super::pipedream::PipeDream;
use crate::step::{Cell, Claims, Plan, Schedule};
use layers::{StrategyInfo, Tries};

/// `PipeDream` with vertical sync.
pub struct PipeDreamVertical;

const NAMES: [&str; 4] = [
    "PipeDream with vertical sync",
    "pipedream-vertical",
    "Harlap et al., arXiv:1806.03377",
    "stale-weights.md",
];

static ABOUT: StrategyInfo = StrategyInfo { tries: Tries::Never, ..about(NAMES) };

impl Schedule for PipeDreamVertical {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        PipeDream.row(rank, plan)
    }
    fn updates_each(&self) -> bool {
        true
    }
    fn version(&self, Cell { of, .. }: Cell, plan: &Plan) -> usize {
        (of.microbatch as usize).saturating_sub(plan.ranks - 1)
    }
    fn versions(&self, _: usize, plan: &Plan) -> usize {
        plan.ranks
    }
    fn carries(&self, plan: &Plan) -> usize {
        PipeDream.carries(plan)
    }
    fn claims(&self) -> Option<Claims> {
        PipeDream.claims()
    }
}
