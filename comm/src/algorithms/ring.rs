//! Each rank passes a chunk to its right neighbour in every step: once around adds, once more copies.
//!
//! `n` ranks of `N` elements each, in `n` chunks; rank `r`'s right neighbour is `r+1 mod n`, chunk numbers too are
//! modulo `n`; α and β as in [`Link`](crate::Link).
//!
//! ```text
//! reduce-scatter  n−1 steps, in step s  r → r+1:  chunk r−s,   added     r has the sum of chunk r+1 then
//! all-gather      n−1 steps, in step s  r → r+1:  chunk r+1−s, replaced
//! time            2(n−1)·(α + N/n·β)
//! traffic         2N − c_{r+1} − c_{r+2} elements of rank r, where chunk i has c_i; 2(n−1)·N over all ranks
//! ```
//! No all-reduce moves less; best for long data, and wherever only neighbours are linked. For many ranks and short data
//! its 2(n−1) latencies are what it costs.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//! Compare: `tree.rs`, the same traffic in fewer steps, between ranks far apart.
use super::CommSchedule;
use crate::{Arrival, CommStep, Transfer};
use std::ops::Range;

/// A chunk for every rank.
pub(super) fn schedule(ranks: usize) -> CommSchedule {
    let ring = Ring { ranks: (0..ranks).collect(), pieces: (0..ranks).map(|c| c..c + 1).collect() };
    let mut steps = ring.reduce_scatter("reduce-scatter");
    steps.extend(ring.all_gather("all-gather"));
    CommSchedule::new(ranks, ranks, steps)
}

/// Some ranks in the order in which they pass on, and as many pieces of the data, of one chunk or several each.
pub(super) struct Ring {
    pub(super) ranks: Vec<usize>,
    pub(super) pieces: Vec<Range<usize>>,
}

impl Ring {
    /// The sum of every piece, on the rank that [`Ring::owned`] names.
    pub(super) fn reduce_scatter(&self, phase: &'static str) -> Vec<CommStep> {
        self.around(phase, 0, Arrival::Add)
    }
    /// Every piece on every rank, of which each has the one that [`Ring::owned`] names.
    pub(super) fn all_gather(&self, phase: &'static str) -> Vec<CommStep> {
        self.around(phase, 1, Arrival::Replace)
    }
    /// The piece whose sum the ring's rank at this place has between the halves.
    pub(super) fn owned(&self, place: usize) -> Range<usize> {
        self.pieces[(place + 1) % self.ranks.len()].clone()
    }
    /// Once around, beginning with the piece that is so far to the right of a rank's own.
    fn around(&self, phase: &'static str, first: usize, how: Arrival) -> Vec<CommStep> {
        let n = self.ranks.len();
        let transfer = |place: usize, step: usize| Transfer {
            from: self.ranks[place],
            to: self.ranks[(place + 1) % n],
            chunks: self.pieces[(place + first + n - step) % n].clone(),
            how,
        };
        let transfers = |step| (0..n).map(|place| transfer(place, step)).collect();
        (0..n - 1).map(|step| CommStep { phase, transfers: transfers(step) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, Op};
    use crate::ledger::elements_sent;

    /// Kills: another rotation of chunks than the ledger's, a step more or less, a step that waits for another's rank.
    #[test]
    fn steps_traffic_and_time_are_the_ledgers_and_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for n in 1..=17 {
            let schedule = schedule(n);
            assert_eq!((schedule.steps().len(), schedule.chunks()), (2 * (n - 1), n));
            for elements in [0, 1, n - 1, n + 1, 23 * n, 1009] {
                for rank in 0..n {
                    let call = Call { op: Op::AllReduce, rows: elements, cols: 1, ..Call::barrier() };
                    let counted = elements_sent(&call, n, rank);
                    assert_eq!(
                        schedule.sent(rank, elements),
                        counted,
                        "rank {rank} of {n}, {elements} elements"
                    );
                }
            }
            let nanoseconds = 2 * (n - 1) * (3000 + 4 * 25);
            assert_eq!(schedule.time(&link, 4, 25 * n).as_nanos(), nanoseconds as u128);
        }
    }

    /// Kills: a message that skips a neighbour, or goes to the left.
    #[test]
    fn messages_go_to_the_right_neighbour_only() {
        for n in 2..=17 {
            for step in schedule(n).steps() {
                assert_eq!(step.transfers.len(), n);
                assert!(step.transfers.iter().all(|t| t.to == (t.from + 1) % n && t.chunks.len() == 1));
            }
        }
    }
}
