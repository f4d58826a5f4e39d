//! Rings inside nodes and across nodes: a node's ranks split the data before they talk to other nodes.
//!
//! `m` nodes of `k` consecutive ranks, `n = m·k`; `N` elements of each rank, in `k` pieces of `m` chunks; α
//! and β as in [`Link`](crate::Link).
//! ```text
//! reduce-scatter inside   k−1 steps, each node a ring on its k pieces:            N/k a step
//! reduce-scatter across   m−1 steps, k rings at once, each of the ranks in one
//!                         place of their nodes, on the piece that they have:      N/n a step
//! all-gather across       m−1 steps, the same rings:                              N/n a step
//! all-gather inside       k−1 steps, each node a ring:                            N/k a step
//! time                    2(k−1)·(α + N/k·β) + 2(m−1)·(α + N/n·β)
//! traffic                 2(n−1)/n·N of each rank, as in one ring, but only 2(m−1)/n·N of it between nodes
//! ```
//! Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2D-torus
//! all-reduce), arXiv:1811.05233. Compare: `ring.rs`, which provides both halves.
use super::ring::Ring;
use crate::CommRound;
use crate::schedule::CommSchedule;
use std::ops::Range;

/// Schedule of one chunk per rank. `node` divides `ranks`.
///
/// Best if links inside a node are faster than links between nodes: each rank sends only 1/k of the bytes
/// that cross. Even on equal links there are fewer rounds than in one ring: `2(k−1) + 2(m−1)`. The minimum is
/// at `k = m`.
pub(super) fn schedule(ranks: usize, node: usize) -> CommSchedule {
    let nodes = ranks / node;
    let pieces = || (0..node).map(|place| place * nodes..(place + 1) * nodes).collect();
    let first_ranks = (0..ranks).step_by(node);
    let inside: Vec<_> =
        first_ranks.map(|first| Ring { ranks: (first..first + node).collect(), pieces: pieces() }).collect();
    let across: Vec<_> = (0..node)
        .map(|place| Ring {
            ranks: (place..ranks).step_by(node).collect(),
            pieces: one_by_one(inside[0].owned(place)),
        })
        .collect();
    let steps = [
        at_once(inside.iter().map(|ring| ring.reduce_scatter("reduce-scatter inside nodes"))),
        at_once(across.iter().map(|ring| ring.reduce_scatter("reduce-scatter across nodes"))),
        at_once(across.iter().map(|ring| ring.all_gather("all-gather across nodes"))),
        at_once(inside.iter().map(|ring| ring.all_gather("all-gather inside nodes"))),
    ];
    CommSchedule::new(ranks, ranks, steps.concat())
}

/// Makes each of these chunks a piece.
fn one_by_one(chunks: Range<usize>) -> Vec<Range<usize>> {
    chunks.map(|chunk| chunk..chunk + 1).collect()
}

/// Merges the rounds of rings without common ranks, which have the same number of rounds, into one sequence.
fn at_once(rings: impl Iterator<Item = Vec<CommRound>>) -> Vec<CommRound> {
    let join = |mut all: Vec<CommRound>, ring: Vec<CommRound>| {
        all.iter_mut().zip(ring).for_each(|(step, of_ring)| step.transfers.extend(of_ring.transfers));
        all
    };
    rings.reduce(join).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a ring of the wrong ranks, all of the data between nodes, steps of rings that wait for each
    /// other.
    #[test]
    fn steps_traffic_and_time_are_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for (m, k) in (1..=8).flat_map(|m| (1..=8).map(move |k| (m, k))) {
            let (n, elements) = (m * k, 25 * m * k);
            let schedule = schedule(n, k);
            assert_eq!((schedule.rounds().len(), schedule.chunks()), (2 * (k - 1) + 2 * (m - 1), n));
            assert!((0..n).all(|rank| schedule.sent(rank, elements) == 2 * (n - 1) * 25));
            let nanoseconds = 2 * (k - 1) * (3000 + 4 * 25 * m) + 2 * (m - 1) * (3000 + 4 * 25);
            assert_eq!(schedule.time(&link, 4, elements).as_nanos(), nanoseconds as u128);
            let all = schedule.rounds().iter().flat_map(|step| &step.transfers);
            let crossing = all.filter(|t| t.from / k != t.to / k);
            let crossing: usize = crossing.map(|t| schedule.elements(t.chunks.clone(), elements).len()).sum();
            assert_eq!(crossing, 2 * (m - 1) * elements);
        }
    }

    /// Kills: a special case where there is one node, or one rank in each.
    #[test]
    fn one_node_and_nodes_of_one_rank_are_the_plain_ring() {
        for n in 1..=17 {
            let plain = |schedule: CommSchedule| -> Vec<_> {
                schedule.rounds().iter().map(|step| step.transfers.clone()).collect()
            };
            let ring = plain(super::super::ring::schedule(n));
            assert_eq!(plain(schedule(n, n)), ring);
            assert_eq!(plain(schedule(n, 1)), ring);
        }
    }
}
