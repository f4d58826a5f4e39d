//! Recursive halving, then doubling: half the data goes p/2 ranks away, a quarter p/4, …; the sums return.
//!
//! `n` ranks of `N` elements each, of which the first `p` take part; `p` is the largest power of two up to
//! `n`; `p` chunks; α and β as in [`Link`](crate::Link).
//! ```text
//! fold            1 step if n > p: rank p+i → i:  all, added
//! reduce-scatter  log2 p steps, d = p/2, …, 1: r ↔ r xor d:  the partner's d chunks of the 2d in work, added
//! all-gather      log2 p steps, d = 1, …, p/2:  r ↔ r xor d:  the d chunks that r has, replaced
//! unfold          1 step if n > p: rank i → p+i:  all, replaced
//! time            2·log2 p·α + 2(p−1)/p·N·β, and 2α + 2N·β if n > p
//! traffic         2(p−1)·N over the first p ranks, and 2(n−p)·N if n > p: 2(n−1)·N over all
//! ```
//! Source: Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner,
//! Gropp, "Optimization of collective communication operations in MPICH", §4, 2005. Here the last ranks fold.
//! Compare: `ring.rs`, in which only neighbours talk.
use crate::schedule::CommSchedule;
use crate::{Arrival, CommRound, Transfer};
use std::ops::Range;

/// Schedule of one chunk per rank that takes part.
///
/// Best for powers of two, for which the least traffic takes 2·log2 n rounds. One rank more than a power of
/// two doubles the time of long data.
pub(super) fn schedule(ranks: usize) -> CommSchedule {
    let members = 1 << ranks.ilog2();
    let fold = (members..ranks).map(|extra| (extra, extra - members));
    let unfold = fold.clone().map(|(extra, partner)| (partner, extra));
    let fold = whole("fold", members, fold, Arrival::Add).into_iter();
    let steps = fold.chain(reduce_scatter(members)).chain(all_gather(members));
    let steps = steps.chain(whole("unfold", members, unfold, Arrival::Replace)).collect();
    CommSchedule::new(ranks, members, steps)
}

/// Sums chunk `r` on rank `r`; `ranks` is a power of two.
fn reduce_scatter(ranks: usize) -> Vec<CommRound> {
    let distances = (0..ranks.ilog2()).rev().map(|k| 1 << k);
    distances.map(|d| exchange("reduce-scatter", ranks, d, Arrival::Add, |_, to| block(to, d))).collect()
}

/// Copies every chunk to every rank; rank `r` starts with chunk `r`.
fn all_gather(ranks: usize) -> Vec<CommRound> {
    let distances = (0..ranks.ilog2()).map(|k| 1 << k);
    distances.map(|d| exchange("all-gather", ranks, d, Arrival::Replace, |from, _| block(from, d))).collect()
}

/// Aligned range of `size` chunks that contains `chunk`; `size` is a power of two.
fn block(chunk: usize, size: usize) -> Range<usize> {
    let start = chunk - chunk % size;
    start..start + size
}

/// Round in which every rank exchanges messages with the rank `distance` away (by xor).
fn exchange(
    phase: &'static str,
    ranks: usize,
    distance: usize,
    how: Arrival,
    chunks: impl Fn(usize, usize) -> Range<usize>,
) -> CommRound {
    let transfer = |from| {
        let to = from ^ distance;
        Transfer { from, to, chunks: chunks(from, to), how }
    };
    CommRound { phase, transfers: (0..ranks).map(transfer).collect() }
}

/// Round in which each pair sends all chunks at once; none if there are no pairs.
fn whole(
    phase: &'static str,
    chunks: usize,
    pairs: impl Iterator<Item = (usize, usize)>,
    how: Arrival,
) -> Option<CommRound> {
    let transfers: Vec<_> = pairs.map(|(from, to)| Transfer { from, to, chunks: 0..chunks, how }).collect();
    (!transfers.is_empty()).then_some(CommRound { phase, transfers })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a fold of powers of two, or none elsewhere; a half too large or too small; a distance left out.
    #[test]
    fn steps_traffic_and_time_are_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for n in 1..=17usize {
            let (p, extra) = (1 << n.ilog2(), !n.is_power_of_two());
            let schedule = schedule(n);
            let rounds = 2 * n.ilog2() as usize;
            assert_eq!((schedule.rounds().len(), schedule.chunks()), (rounds + 2 * usize::from(extra), p));
            for elements in [0, 1, 23, 25 * p, 1009] {
                assert_eq!((0..n).map(|r| schedule.sent(r, elements)).sum::<usize>(), 2 * (n - 1) * elements);
                assert!((p..n).all(|r| schedule.sent(r, elements) == elements));
            }
            let elements = 25 * p;
            let folds = |rank: usize| if rank < n - p { elements } else { 0 };
            assert!((0..p).all(|r| schedule.sent(r, elements) == 2 * 25 * (p - 1) + folds(r)));
            let nanoseconds = rounds * 3000 + 2 * (p - 1) * 4 * 25;
            let fold = if extra { 2 * (3000 + 4 * elements) } else { 0 };
            assert_eq!(schedule.time(&link, 4, elements).as_nanos(), (nanoseconds + fold) as u128);
        }
    }

    /// Kills: an order of distances in which blocks are not consecutive chunks.
    #[test]
    fn partners_are_far_while_halves_are_large() {
        let schedule = schedule(8);
        let of_rank_5 = schedule.rounds().iter().map(|s| s.transfers.iter().find(|t| t.from == 5).unwrap());
        let sent: Vec<_> = of_rank_5.map(|t| (t.to, t.chunks.clone())).collect();
        assert_eq!(sent, [(1, 0..4), (7, 6..8), (4, 4..5), (4, 5..6), (7, 4..6), (1, 4..8)]);
    }
}
