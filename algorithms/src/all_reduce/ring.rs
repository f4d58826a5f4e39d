//! Each rank passes one chunk per round to its right neighbour: once around adds, once more copies.
//!
//! `n` ranks of `N` elements each, in `n` chunks; the right neighbour of rank `r` is `r+1`; ranks and chunks
//! count modulo `n`; α and β as in [`Link`](crate::Link).
//! ```text
//! reduce-scatter  n−1 steps, in step s  r → r+1:  chunk r−s,   added     r has the sum of chunk r+1 then
//! all-gather      n−1 steps, in step s  r → r+1:  chunk r+1−s, replaced
//! time            2(n−1)·(α + N/n·β)
//! traffic         2N − c_{r+1} − c_{r+2} elements of rank r, where chunk i has c_i; 2(n−1)·N over all ranks
//! ```
//! No all-reduce moves less. Best for long data, and where only neighbours are linked. For short data on many
//! ranks, its 2(n−1) latencies dominate.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//! Compare: `tree.rs`, the same traffic in fewer rounds, between distant ranks.
use crate::schedule::CommSchedule;
use crate::{Arrival, CommRound, Transfer};
use std::ops::Range;

/// Schedule of one chunk per rank.
pub(super) fn schedule(ranks: usize) -> CommSchedule {
    let ring = Ring { ranks: (0..ranks).collect(), pieces: (0..ranks).map(|c| c..c + 1).collect() };
    let mut steps = ring.reduce_scatter("reduce-scatter");
    steps.extend(ring.all_gather("all-gather"));
    CommSchedule::new(ranks, ranks, steps)
}

/// Ranks in ring order, and the same number of pieces of the data, each of one or more chunks.
pub(super) struct Ring {
    pub(super) ranks: Vec<usize>,
    pub(super) pieces: Vec<Range<usize>>,
}

impl Ring {
    /// Sums every piece; each rank ends with the sum of the piece that [`Ring::owned`] returns.
    pub(super) fn reduce_scatter(&self, phase: &'static str) -> Vec<CommRound> {
        self.around(phase, 0, Arrival::Add)
    }
    /// Copies every piece to every rank; each rank starts with the piece that [`Ring::owned`] returns.
    pub(super) fn all_gather(&self, phase: &'static str) -> Vec<CommRound> {
        self.around(phase, 1, Arrival::Replace)
    }
    /// Piece whose sum the rank at `place` of the ring has between the two halves.
    pub(super) fn owned(&self, place: usize) -> Range<usize> {
        self.pieces[(place + 1) % self.ranks.len()].clone()
    }
    /// Passes every piece around the ring once; each rank starts with the piece `first` places to the right
    /// of its own.
    fn around(&self, phase: &'static str, first: usize, how: Arrival) -> Vec<CommRound> {
        let n = self.ranks.len();
        let transfer = |place: usize, step: usize| Transfer {
            from: self.ranks[place],
            to: self.ranks[(place + 1) % n],
            chunks: self.pieces[(place + first + n - step) % n].clone(),
            how,
        };
        let transfers = |step| (0..n).map(|place| transfer(place, step)).collect();
        (0..n - 1).map(|step| CommRound { phase, transfers: transfers(step) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a message that skips a neighbour, or goes to the left.
    #[test]
    fn messages_go_to_the_right_neighbour_only() {
        for n in 2..=17 {
            for step in schedule(n).rounds() {
                assert_eq!(step.transfers.len(), n);
                assert!(step.transfers.iter().all(|t| t.to == (t.from + 1) % n && t.chunks.len() == 1));
            }
        }
    }
}
