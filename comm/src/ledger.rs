//! Traffic of a rank: calls, elements and bytes by set of axes and operation.
//! Bytes on the wire are those that this rank would *send* if `n` ranks, each linked to all, ran the
//! operation with the least traffic, whatever the engine does. Each rank has `N` elements; chunk `i` of `n`
//! nearly equal chunks has `c_i` (the first `N mod n` are one larger; counts, if given, are the chunks):
//! ```text
//! all_reduce      2N − c_{r+1} − c_{r+2}    a ring: rank r passes on every chunk but c_{r+1} while summing,
//!                                           all but c_{r+2} while gathering; over all ranks 2(n−1)·N
//! all_gather      Σc − c_{r+1}              a ring; of N elements of each rank n(n−1)·N over all ranks
//! reduce_scatter  N − c_r                   a ring; over all ranks (n−1)·N
//! broadcast       N, the last rank 0        a chain root, root+1, …: over all ranks (n−1)·N
//! gather          N, the root 0             scatter: the root N − c_root, the others 0
//! all_to_all      N − c_r                   what a rank keeps does not travel
//! send            N                         receive and barrier: 0
//! ```
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
use crate::{Axes, Call, Counts, Op};
use algorithms::Link;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Sub;
use std::time::Duration;
use tensor::count;

/// Name of the count in a report of overflow.
const SENT: &str = "the bytes that a rank sends";

/// The traffic of one rank along one set of axes in one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls.
    pub calls: usize,
    /// Elements of the tensors given (`receive` and `scatter`: of the tensor received).
    pub elements: usize,
    /// Bytes of these elements: the payload.
    pub payload: usize,
    /// Bytes on the wire that this rank sends; see the header of this file.
    pub bytes: usize,
}

impl Traffic {
    /// Time of calls of one operation among `ranks` ranks that follow each other, if no rank sends more than
    /// this one: the price of traffic that overlaps with no compute. Latencies are those of the algorithm
    /// with the least traffic, as in a world over such [links](crate::World::link). A message counts where it
    /// is sent.
    pub fn time(&self, link: &Link, op: Op, ranks: usize) -> Duration {
        let latencies = op.latencies(ranks).saturating_mul(self.calls);
        let waiting = link.latency().saturating_mul(latencies.try_into().unwrap_or(u32::MAX));
        waiting.saturating_add(link.moving(self.bytes))
    }
}

/// A snapshot of the traffic of one rank along all its axes. A group over several axes counts under their
/// set, not under each axis.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Ledger(BTreeMap<(Axes, Op), Traffic>); // only what was called

impl Ledger {
    /// Returns the traffic over exactly this axis, or this set of axes, in one operation.
    pub fn get(&self, axes: impl Into<Axes>, op: Op) -> Traffic {
        self.0.get(&(axes.into(), op)).copied().unwrap_or_default()
    }
    /// Returns every set of axes and operation that was called, outermost axes first.
    pub fn iter(&self) -> impl Iterator<Item = (Axes, Op, Traffic)> {
        self.0.iter().map(|(&(axes, op), &traffic)| (axes, op, traffic))
    }
    /// Bytes on the wire along all axes in all operations.
    pub fn wire_bytes(&self) -> usize {
        count::sum(SENT, self.iter().map(|(_, _, traffic)| traffic.bytes))
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(axis, op, traffic)| ((axis, op), traffic))).finish()
    }
}

impl Sub<&Ledger> for Ledger {
    type Output = Ledger;
    /// Returns the traffic since `earlier`, a snapshot of the same rank.
    fn sub(mut self, earlier: &Ledger) -> Ledger {
        for (&(axes, op), now) in &mut self.0 {
            let then = earlier.get(axes, op);
            now.calls -= then.calls;
            now.elements -= then.elements;
            now.payload -= then.payload;
            now.bytes -= then.bytes;
        }
        self.0.retain(|_, traffic| traffic.calls > 0);
        self
    }
}

/// Running counts of one rank, over all its groups.
#[derive(Default)]
pub(crate) struct Counters(Vec<((Axes, Op), Traffic)>); // few entries: a linear search is fast

impl Counters {
    /// Counts a call that sends `sent` elements.
    pub(crate) fn add(&mut self, call: &Call, sent: usize) {
        let (elements, key) = (call.elements(), (call.over.axes, call.op));
        let index = self.0.iter().position(|(counted, _)| *counted == key).unwrap_or_else(|| {
            self.0.push((key, Traffic::default()));
            self.0.len() - 1
        });
        let traffic = &mut self.0[index].1;
        let bytes = |elements| count::product(SENT, &[elements, call.elem.size]);
        let sum = |all, more| count::sum(SENT, [all, more]);
        *traffic = Traffic {
            calls: traffic.calls + 1,
            elements: sum(traffic.elements, elements),
            payload: sum(traffic.payload, bytes(elements)),
            bytes: sum(traffic.bytes, bytes(sent)),
        };
    }
    /// Returns the counts so far.
    pub(crate) fn snapshot(&self) -> Ledger {
        Ledger(self.0.iter().copied().filter(|(_, traffic)| traffic.calls > 0).collect())
    }
}

/// Number of elements that rank `rank` of `n` sends, for `n` of two or more; see the table at the top of this
/// file.
pub(crate) fn elements_sent(call: &Call, n: usize, rank: usize) -> usize {
    let elements = call.elements();
    let (size, larger) = (elements / n, elements % n);
    let chunk = |i: usize| {
        let i = if i < n { i } else { i - n };
        match &call.counts {
            None | Some(Counts::Columns(_)) => size + usize::from(i < larger),
            Some(Counts::Of(counts) | Counts::Between(counts, _)) => counts[i] * call.cols,
        }
    };
    match call.op {
        Op::AllReduce => 2 * elements - chunk(rank + 1) - chunk(rank + 2),
        Op::AllGather if matches!(call.counts, Some(Counts::Of(_))) => {
            (0..n).map(chunk).sum::<usize>() - chunk(rank + 1)
        }
        Op::AllGather => (n - 1) * elements,
        Op::ReduceScatter | Op::AllToAll => elements - chunk(rank),
        Op::Broadcast if (rank + 1) % n == call.root => 0,
        Op::Gather if rank == call.root => 0,
        Op::Scatter if rank == call.root => (n - 1) * elements,
        Op::Broadcast | Op::Gather | Op::Send => elements,
        Op::Scatter | Op::Barrier | Op::Receive => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Axis, Ranks};
    use crate::call::Elem;
    use algorithms::Algorithm;
    use std::sync::Arc;

    /// Kills: another rotation of chunks than the ledger's, a step more or less, a step that waits for
    /// another's rank.
    #[test]
    fn steps_traffic_and_time_are_the_ledgers_and_the_textbooks() {
        let link = "3us,1GB/s".parse().unwrap();
        for n in 1..=17 {
            let schedule = Algorithm::Ring.schedule(n).unwrap();
            assert_eq!((schedule.rounds().len(), schedule.chunks()), (2 * (n - 1), n));
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

    /// Over a link of 1 ms and a byte a microsecond, by hand. Kills: a latency that is paid once for all
    /// calls, or once for a call of many steps, a message that counts on both ranks, bytes that are
    /// forgotten.
    #[test]
    fn calls_take_their_latencies_and_their_bytes() {
        let link: Link = "1ms,1MB/s".parse().unwrap();
        let time = |op, ranks, calls, bytes| {
            Traffic { calls, bytes, ..Traffic::default() }.time(&link, op, ranks).as_micros()
        };
        assert_eq!(time(Op::AllReduce, 4, 3, 500), 3 * 6 * 1000 + 500);
        assert_eq!(time(Op::AllGather, 4, 3, 500), 3 * 3 * 1000 + 500);
        assert_eq!(time(Op::Barrier, 5, 2, 0), 2 * 3 * 1000);
        assert_eq!([time(Op::Send, 4, 3, 500), time(Op::Receive, 4, 3, 0)], [3 * 1000 + 500, 0]);
        assert_eq!(time(Op::AllReduce, 1, 3, 0), 0);
    }

    /// Elements that a ring really sends, step by step: rank r passes on chunk r−s, then chunk r+1−s.
    fn ring_all_reduce(n: usize, rank: usize, elements: usize) -> usize {
        let chunk = |i: usize| elements / n + usize::from(i % n < elements % n);
        (0..n - 1).map(|s| chunk(rank + n - s) + chunk(rank + 1 + n - s)).sum()
    }

    fn call(op: Op, elements: usize) -> Call {
        let elem = Elem::of::<f64>();
        Call { op, rows: elements, cols: 1, elem, ..Call::barrier() }
    }

    /// Kills: a chunk of the wrong rank, a sum that is right only where ranks divide.
    #[test]
    fn bytes_on_the_wire_equal_a_ring_walked_step_by_step() {
        for n in 2..9 {
            let root = n / 2;
            for elements in [0, 1, 5, 24, 25] {
                let sent = |op, rank, elements| elements_sent(&Call { root, ..call(op, elements) }, n, rank);
                let total = |op, elements| (0..n).map(|rank| sent(op, rank, elements)).sum::<usize>();
                for rank in 0..n {
                    assert_eq!(sent(Op::AllReduce, rank, elements), ring_all_reduce(n, rank, elements));
                }
                assert_eq!(total(Op::AllReduce, elements), 2 * (n - 1) * elements);
                assert_eq!(total(Op::AllGather, elements), n * (n - 1) * elements);
                assert_eq!(total(Op::ReduceScatter, n * elements), (n - 1) * n * elements);
                assert_eq!(total(Op::AllToAll, n * elements), (n - 1) * n * elements);
                for op in [Op::Broadcast, Op::Gather, Op::Scatter] {
                    assert_eq!(total(op, elements), (n - 1) * elements, "{op}");
                }
                let of_root = [Op::Broadcast, Op::Gather, Op::Scatter].map(|op| sent(op, root, elements));
                assert_eq!(of_root, [elements, 0, (n - 1) * elements]);
                assert_eq!(sent(Op::Broadcast, root - 1, elements), 0);
            }
        }
    }

    /// Kills: a rank's own block counted as sent, the blocks of others left out.
    #[test]
    fn uneven_blocks_are_counted_as_they_are() {
        let counts: Arc<[usize]> = [3, 0, 2].into();
        let sent = |op, counts, rows| {
            let call = Call { counts: Some(counts), cols: 4, ..call(op, rows) };
            [0, 1, 2].map(|rank| elements_sent(&call, 3, rank))
        };
        // Round the ring every block travels to all but the one after the last.
        assert_eq!(sent(Op::AllGather, Counts::Of(counts.clone()), 3), [5 * 4, 3 * 4, 2 * 4]);
        assert_eq!(sent(Op::ReduceScatter, Counts::Of(counts.clone()), 5), [2 * 4, 5 * 4, 3 * 4]);
        let between = Counts::Between(counts, [9, 9, 9].into());
        assert_eq!(sent(Op::AllToAll, between, 5), [2 * 4, 5 * 4, 3 * 4]);
    }

    /// Kills: a count of bytes that wraps.
    #[test]
    fn bytes_beyond_64_bits_are_not_counted() {
        let (mut counts, most) = (Counters::default(), usize::MAX / 8);
        counts.add(&call(Op::Send, most), most);
        assert_eq!(counts.snapshot().wire_bytes(), most * 8);
        let other = Call { over: Ranks::all(Axis::Dp), ..call(Op::Send, most) };
        let too_many = |work: &mut dyn FnMut()| {
            let why = count::Overflow::caught(work).unwrap_err().to_string();
            assert!(why.starts_with("the bytes that a rank sends"), "{why}");
        };
        too_many(&mut || counts.add(&call(Op::Send, most + 1), 0));
        too_many(&mut || counts.add(&call(Op::Send, 1), 1));
        counts.add(&other, most);
        too_many(&mut || assert_eq!(counts.snapshot().wire_bytes(), 0));
    }

    #[test]
    fn a_ledger_lists_what_was_called_and_subtracts_what_was_before() {
        let mut counts = Counters::default();
        counts.add(&call(Op::AllReduce, 6), 6);
        let before = counts.snapshot();
        counts.add(&call(Op::AllReduce, 2), 1);
        counts.add(&Call { over: Ranks::all(Axis::Dp), ..call(Op::Barrier, 0) }, 0);
        let now = counts.snapshot();
        let all = Traffic { calls: 2, elements: 8, payload: 64, bytes: 56 };
        assert_eq!((now.get(Axis::Tp, Op::AllReduce), now.wire_bytes()), (all, 56));
        let since: Vec<_> = (now - &before).iter().collect();
        let barrier = Traffic { calls: 1, ..Traffic::default() };
        let reduced = Traffic { calls: 1, elements: 2, payload: 16, bytes: 8 };
        let wanted = [(Axis::Dp.into(), Op::Barrier, barrier), (Axis::Tp.into(), Op::AllReduce, reduced)];
        assert_eq!(since, wanted);
        let words = "{(Tp, AllReduce): Traffic { calls: 1, elements: 6, payload: 48, bytes: 48 }}";
        assert_eq!(format!("{before:?}"), words);
    }

    /// Kills: a set counted under its axes, or under another's number; what is no longer there compared.
    #[test]
    fn sets_of_axes_are_counted_by_themselves() {
        let mut counts = Counters::default();
        let over = |axes: Axes| Call { over: Ranks::all(axes), ..call(Op::AllReduce, 6) };
        let sets = [Axis::Tp.into(), Axis::Dp | Axis::Cp, Axis::Pp | Axis::Dp, Axis::Cp.into()];
        sets.into_iter().enumerate().for_each(|(i, axes)| (0..=i).for_each(|_| counts.add(&over(axes), 1)));
        let ledger = counts.snapshot();
        let counted: Vec<_> =
            ledger.iter().map(|(axes, _, traffic)| (axes.to_string(), traffic.calls)).collect();
        assert_eq!(
            counted,
            [("pp.dp", 3), ("dp.cp", 2), ("cp", 4), ("tp", 1)].map(|(s, n)| (s.to_string(), n))
        );
        assert_eq!(ledger.get([Axis::Cp, Axis::Dp], Op::AllReduce).calls, 2);
        assert_eq!(ledger.get(Axis::Dp, Op::AllReduce), Traffic::default());
        assert_eq!(ledger.clone() - &ledger, Ledger::default());
        assert_eq!(ledger.wire_bytes(), 10 * 8);
    }
}
