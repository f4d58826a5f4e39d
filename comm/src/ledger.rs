//! What a rank says: calls, elements and bytes on the wire by axis and operation.
//!
//! Bytes on the wire are the textbook's, whatever an engine does: those that this rank would *send* if `n` ranks in a
//! ring, linked to their neighbours, did the operation with the least traffic. `N` elements, of which chunk `i` of `n`
//! nearly equal ones has `c_i` (the first `N mod n` are one larger):
//!
//! ```text
//! all_reduce      2N − c_{r+1} − c_{r+2}    rank r passes on every chunk but c_{r+1} while summing, every chunk but
//!                                           c_{r+2} while gathering; over all ranks 2(n−1)·N
//! all_gather      (n−1)·N                   N elements of each rank; over all ranks n(n−1)·N
//! reduce_scatter  N − N/n                   over all ranks (n−1)·N
//! broadcast       N, the last rank 0        a chain root, root+1, …: over all ranks (n−1)·N
//! send            N                         receive and barrier: 0
//! ```
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
use crate::axis::Axis;
use crate::call::Op;
use std::fmt;
use std::ops::Sub;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const AXES: usize = Axis::ALL.len();
const OPS: usize = Op::ALL.len();

/// What one rank said along one axis in one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How often it was called.
    pub calls: usize,
    /// Elements of the tensors given (`receive`: of the tensor got).
    pub elements: usize,
    /// Bytes that this rank would send in a ring.
    pub bytes: usize,
}

/// A snapshot of what one rank said along all its axes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Ledger([[Traffic; OPS]; AXES]);

impl Ledger {
    /// Along one axis in one operation.
    pub fn get(&self, axis: Axis, op: Op) -> Traffic {
        self.0[axis as usize][op as usize]
    }
    /// Every axis and operation that was called, axes outermost first.
    pub fn iter(&self) -> impl Iterator<Item = (Axis, Op, Traffic)> {
        let all = Axis::ALL.iter().flat_map(|&axis| Op::ALL.iter().map(move |&op| (axis, op)));
        all.map(|(axis, op)| (axis, op, self.get(axis, op))).filter(|(_, _, traffic)| traffic.calls > 0)
    }
    /// Bytes on the wire along all axes in all operations.
    pub fn wire_bytes(&self) -> usize {
        self.iter().map(|(_, _, traffic)| traffic.bytes).sum()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(axis, op, traffic)| ((axis, op), traffic))).finish()
    }
}

impl Sub<&Ledger> for Ledger {
    type Output = Ledger;
    /// What was said since `earlier`, a snapshot of the same rank.
    fn sub(mut self, earlier: &Ledger) -> Ledger {
        for (now, then) in self.0.as_flattened_mut().iter_mut().zip(earlier.0.as_flattened()) {
            now.calls -= then.calls;
            now.elements -= then.elements;
            now.bytes -= then.bytes;
        }
        self
    }
}

/// The running counts of one rank, shared by its groups.
#[derive(Default)]
pub(crate) struct Counts([[Count; OPS]; AXES]);
#[derive(Default)]
struct Count([AtomicUsize; 3]);

impl Counts {
    /// Counts one call of `elements` elements that sends `bytes` bytes.
    pub(crate) fn add(&self, axis: Axis, op: Op, elements: usize, bytes: usize) {
        let Count([calls, all_elements, all_bytes]) = &self.0[axis as usize][op as usize];
        calls.fetch_add(1, Relaxed);
        all_elements.fetch_add(elements, Relaxed);
        all_bytes.fetch_add(bytes, Relaxed);
    }
    /// The counts now.
    pub(crate) fn snapshot(&self) -> Ledger {
        let traffic = |Count(count): &Count| {
            let [calls, elements, bytes] = [0, 1, 2].map(|i: usize| count[i].load(Relaxed));
            Traffic { calls, elements, bytes }
        };
        Ledger(std::array::from_fn(|axis| std::array::from_fn(|op| traffic(&self.0[axis][op]))))
    }
}

/// Elements that rank `rank` of `n` sends; the table at the top of this file.
pub(crate) fn elements_sent(op: Op, n: usize, rank: usize, root: usize, elements: usize) -> usize {
    let chunk = |i: usize| elements / n + usize::from(i % n < elements % n);
    match op {
        Op::AllReduce => 2 * elements - chunk(rank + 1) - chunk(rank + 2),
        Op::AllGather => (n - 1) * elements,
        Op::ReduceScatter => elements - elements / n,
        Op::Broadcast if (rank + 1) % n == root => 0,
        Op::Broadcast | Op::Send => elements,
        Op::Barrier | Op::Receive => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a ring really sends, step by step: rank r passes on chunk r−s, then chunk r+1−s.
    fn ring_all_reduce(n: usize, rank: usize, elements: usize) -> usize {
        let chunk = |i: usize| elements / n + usize::from(i % n < elements % n);
        (0..n - 1).map(|s| chunk(rank + n - s) + chunk(rank + 1 + n - s)).sum()
    }

    /// Kills: a chunk of the wrong rank, a sum that is right only where ranks divide.
    #[test]
    fn bytes_on_the_wire_equal_a_ring_walked_step_by_step() {
        for n in 2..9 {
            for elements in [0, 1, 5, 24, 25] {
                let all = |op, elements| (0..n).map(move |r| elements_sent(op, n, r, n / 2, elements));
                assert!(
                    (0..n).map(|r| ring_all_reduce(n, r, elements)).eq(all(Op::AllReduce, elements)),
                    "{n} {elements}"
                );
                assert_eq!(all(Op::AllReduce, elements).sum::<usize>(), 2 * (n - 1) * elements);
                assert_eq!(all(Op::AllGather, elements).sum::<usize>(), n * (n - 1) * elements);
                assert_eq!(all(Op::ReduceScatter, n * elements).sum::<usize>(), (n - 1) * n * elements);
                assert_eq!(all(Op::Broadcast, elements).sum::<usize>(), (n - 1) * elements);
                assert_eq!(elements_sent(Op::Broadcast, n, n / 2, n / 2, elements), elements);
                assert_eq!(elements_sent(Op::Broadcast, n, n / 2 - 1, n / 2, elements), 0);
            }
        }
    }

    #[test]
    fn a_ledger_lists_what_was_called_and_subtracts_what_was_before() {
        let counts = Counts::default();
        counts.add(Axis::Tp, Op::AllReduce, 6, 48);
        let before = counts.snapshot();
        counts.add(Axis::Tp, Op::AllReduce, 1, 8);
        counts.add(Axis::Dp, Op::Barrier, 0, 0);
        let now = counts.snapshot();
        assert_eq!(now.get(Axis::Tp, Op::AllReduce), Traffic { calls: 2, elements: 7, bytes: 56 });
        assert_eq!(now.wire_bytes(), 56);
        let since: Vec<_> = (now - &before).iter().collect();
        assert_eq!(
            since,
            [
                (Axis::Dp, Op::Barrier, Traffic { calls: 1, elements: 0, bytes: 0 }),
                (Axis::Tp, Op::AllReduce, Traffic { calls: 1, elements: 1, bytes: 8 })
            ]
        );
        assert_eq!(format!("{before:?}"), "{(Tp, AllReduce): Traffic { calls: 1, elements: 6, bytes: 48 }}");
    }
}
