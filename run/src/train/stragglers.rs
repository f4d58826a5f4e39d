//! Report on stragglers: how often and how long the other ranks waited for each rank in a run.
//!
//! A wait counts for the rank that was last seen missing. A rank that is late because it waited itself passes
//! the lateness on: a straggler is waited for, and waits little. So ranks are ordered by the difference.
use comm::RankWaits;
use serde::Serialize;

/// Waits for one rank, and its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// The rank.
    pub rank: usize,
    /// Number of waits of other ranks for it.
    pub waits: usize,
    /// Their seconds, of all ranks together.
    pub seconds: f64,
    /// Seconds that the rank waited for others.
    pub own_seconds: f64,
    /// The longest wait for it, if there was one.
    pub longest: Option<RankWaits>,
}

/// Returns the ranks, the one that cost the others the most time first.
pub fn stragglers(waits: &[RankWaits], ranks: usize) -> Vec<Straggler> {
    let straggler = |rank: usize| {
        let on = waits.iter().filter(|wait| wait.on == rank);
        Straggler {
            rank,
            waits: on.clone().map(|wait| wait.waits).sum(),
            seconds: on.clone().fold(0.0, |sum, wait| sum + wait.seconds),
            own_seconds: waits.iter().filter(|w| w.rank == rank).fold(0.0, |sum, wait| sum + wait.seconds),
            longest: on.max_by(|a, b| a.longest_seconds.total_cmp(&b.longest_seconds)).cloned(),
        }
    };
    let mut stragglers: Vec<_> = (0..ranks).map(straggler).collect();
    let cost = |of: &Straggler| of.seconds - of.own_seconds;
    stragglers.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
    stragglers
}
