//! Each rank adds up one chunk of all ranks, in rank order, and sends the sum to every rank.
//!
//! `n` ranks of `N` elements each, in `n` chunks; α and β as in [`Link`](crate::Link).
//!
//! ```text
//! reduce-scatter  1 step, every rank → r:  chunk r  rank r adds: rank 0's, rank 1's, …, its own in its place
//! all-gather      1 step, r → every rank:  chunk r
//! time            2(n−1)·(α + N/n·β), as a rank sends and receives one message at a time
//! traffic         N − c_r + (n−1)·c_r elements of rank r, where chunk i has c_i; 2(n−1)·N over all ranks
//! ```
//! No all-reduce moves less. Float sums have the bits of a sum in rank order, so they do not depend on the
//! engine. Each rank needs room for one chunk of every rank, and a link to every rank.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", §4.2
//! (pairwise exchange), 2005. Compare: `ring.rs`, same traffic and time, between neighbours; another order.
use crate::schedule::CommSchedule;
use crate::{Arrival, CommRound, Transfer};

/// Schedule of one chunk per rank, with one round for each half.
pub(super) fn schedule(ranks: usize) -> CommSchedule {
    let pairs = || (0..ranks).flat_map(move |from| (0..ranks).map(move |to| (from, to)));
    let step = |phase, how, chunk: fn(usize, usize) -> usize| {
        let transfer = |(from, to)| Transfer { from, to, chunks: chunk(from, to)..chunk(from, to) + 1, how };
        CommRound { phase, transfers: pairs().filter(|(from, to)| from != to).map(transfer).collect() }
    };
    let steps = vec![
        step("reduce-scatter", Arrival::Add, |_, to| to),
        step("all-gather", Arrival::Replace, |from, _| from),
    ];
    CommSchedule::new(ranks, ranks, if ranks == 1 { Vec::new() } else { steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: another rank's chunk, a rank that is left out, addends that do not come in rank order.
    #[test]
    fn steps_traffic_and_time_are_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for n in 1..=17 {
            let schedule = schedule(n);
            assert_eq!((schedule.rounds().len(), schedule.chunks()), (if n == 1 { 0 } else { 2 }, n));
            for elements in [0, 25 * n, 1009] {
                let chunk = |rank| schedule.elements(rank..rank + 1, elements).len();
                let sent = |rank: usize| elements - chunk(rank) + (n - 1) * chunk(rank);
                assert!((0..n).all(|rank| schedule.sent(rank, elements) == sent(rank)));
            }
            let nanoseconds = 2 * (n - 1) * (3000 + 4 * 25);
            assert_eq!(schedule.time(&link, 4, 25 * n).as_nanos(), nanoseconds as u128);
            let addends =
                |to| schedule.rounds().iter().flat_map(|step| &step.transfers).filter(move |t| t.to == to);
            for rank in 0..n {
                let from =
                    addends(rank).filter(|t| t.how == Arrival::Add).map(|t| (t.from, t.chunks.clone()));
                assert!(from.eq((0..n).filter(|&peer| peer != rank).map(|peer| (peer, rank..rank + 1))));
            }
        }
    }
}
