//! Every rank sends its data to rank 0, which adds in rank order and sends the sum to each rank in turn.
//!
//! `n` ranks of `N` elements each; α and β as in [`Link`](crate::Link).
//!
//! ```text
//! reduce       n−1 steps, rank r → 0:  N      rank 0 adds
//! broadcast    n−1 steps, rank 0 → r:  N
//! time         2(n−1)·(α + N·β)
//! traffic      (n−1)·N elements of rank 0, N of every other: 2(n−1)·N over all ranks
//! ```
//! No all-reduce moves less over all ranks, but rank 0 does all the work. Sums are in rank order. This is the
//! simplest algorithm to compare others with.
//!
//! Source: MPI 4.1, §6.4 and §6.9: the loops of messages that define broadcast and reduce.
//! Compare: `ring.rs`, the same traffic over all ranks, divided equally.
use crate::schedule::CommSchedule;
use crate::{Arrival, CommRound, Transfer};

/// Schedule of one chunk, with one message per round.
pub(super) fn schedule(ranks: usize) -> CommSchedule {
    let step =
        |phase, from, to, how| CommRound { phase, transfers: vec![Transfer { from, to, chunks: 0..1, how }] };
    let reduce = (1..ranks).map(|rank| step("reduce", rank, 0, Arrival::Add));
    let broadcast = (1..ranks).map(|rank| step("broadcast", 0, rank, Arrival::Replace));
    CommSchedule::new(ranks, 1, reduce.chain(broadcast).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: messages that share a step, a rank that is left out, one that rank 0 counts twice.
    #[test]
    fn steps_traffic_and_time_are_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for n in 1..=17 {
            let schedule = schedule(n);
            assert_eq!(schedule.rounds().len(), 2 * (n - 1));
            for elements in [0, 1, 1000] {
                assert_eq!(schedule.sent(0, elements), (n - 1) * elements);
                assert!((1..n).all(|rank| schedule.sent(rank, elements) == elements));
                let nanoseconds = 2 * (n - 1) * (3000 + 4 * elements);
                assert_eq!(schedule.time(&link, 4, elements).as_nanos(), nanoseconds as u128);
            }
        }
    }
}
