//! A slow link, for trying interconnects and overlap on one machine: ranks wait as long as the bytes would take.
//!
//! A message takes α + bytes/β from when it was sent, or from when the one before it between the same two ranks has left:
//! messages share the bandwidth, and their latencies overlap. Each pair of ranks has a link of its own; in
//! [`Schedule::time`](crate::Schedule::time) a rank gets one message at a time, so that the naive all-reduce, in which many
//! send to one, is faster here than there. A collective that goes directly takes what an algorithm with the least traffic
//! would need, from when the last rank came: so many steps of α, and the bytes of the busiest rank. With little to say, one
//! of fewer steps would be faster.
//!
//! ```text
//! all_reduce                    2(n−1)·α + 2(n−1)/n·N/β      a ring
//! all_gather, reduce_scatter    (n−1)·α + what the busiest rank sends round a ring
//! broadcast                     (n−1)·α + N/β                a chain that passes on each piece as it comes
//! gather, scatter, all_to_all   (n−1)·α + all that the busiest rank sends or gets
//! barrier                       ⌈log2 n⌉·α                   dissemination
//! ```
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
use super::watch::Watch;
use crate::call::{Call, Counts, Op};
use crate::link::Link;
use crate::sync::{Instant, yield_now};
use std::time::Duration;

/// So long after `start`, or a hundred years, since no clock counts to all times.
pub(super) fn after(start: Instant, time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);
    start + time.min(LONGEST)
}

/// What a collective of `n` ranks takes that goes directly.
pub(super) fn collective_time(link: &Link, call: &Call, n: usize) -> Duration {
    let (latency, moving) = collective_parts(link, call, n);
    latency.saturating_add(moving)
}

/// The parts of it: until the first byte has come, and while bytes move.
pub(super) fn collective_parts(link: &Link, call: &Call, n: usize) -> (Duration, Duration) {
    let moving = link.moving(busiest(call, n) * call.elem.size);
    (link.latency().saturating_mul(call.op.steps(n) as u32), moving)
}

/// Elements that the busiest rank sends or gets, as far as this one knows.
fn busiest(call: &Call, n: usize) -> usize {
    let elements = call.elements();
    let sum = |counts: &[usize]| counts.iter().sum::<usize>() * call.cols;
    match (call.op, &call.counts) {
        (Op::AllReduce, _) => (2 * (n - 1) * elements).div_ceil(n),
        (Op::AllGather | Op::ReduceScatter, Some(Counts::Of(counts))) => {
            sum(counts) - counts.iter().min().map_or(0, |least| least * call.cols)
        }
        (Op::AllToAll, Some(Counts::Between(give, take))) => sum(give).max(sum(take)),
        (Op::ReduceScatter | Op::AllToAll, _) => elements - elements / n,
        (Op::AllGather | Op::Gather | Op::Scatter, _) => (n - 1) * elements,
        (Op::Barrier, _) => 0,
        (Op::Broadcast | Op::Send | Op::Receive, _) => elements,
    }
}

/// The messages of one rank to another over a slow link.
#[derive(Default)]
pub(super) struct Line {
    free: Option<Instant>, // when the last message has left
}

impl Line {
    /// When a message of so many bytes arrives that was sent at `sent`.
    pub(super) fn arrival(&mut self, link: &Link, sent: Instant, bytes: usize) -> Instant {
        let start = self.free.map_or(sent, |free| free.max(sent));
        self.free = Some(after(start, link.moving(bytes)));
        after(start, link.time(bytes))
    }
}

/// Waits until then, unless a rank has failed.
pub(super) fn pause(watch: &Watch, rank: usize, until: Instant) {
    const NAP: Duration = Duration::from_millis(10);
    const EARLY: Duration = Duration::from_micros(100); // what a sleep may last too long
    let from = std::time::Instant::now();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || watch.alive().is_err() {
            break;
        }
        match left.checked_sub(EARLY) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep.min(NAP)),
            _ => yield_now(),
        }
    }
    watch.record(rank).waited(from);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn call(op: Op, rows: usize, counts: Option<Counts>) -> Call {
        Call { op, rows, cols: 10, counts, ..Call::barrier() }
    }

    /// Kills: latencies or bytes of another operation, the mean taken for the busiest.
    #[test]
    fn collectives_take_what_their_algorithms_would() {
        let link = "1us,1GB/s".parse().unwrap(); // a nanosecond a byte
        let time = |op, rows, counts| collective_time(&link, &call(op, rows, counts), 4).as_nanos();
        assert_eq!(time(Op::AllReduce, 100, None), 6_000 + 2 * 3 * 1000);
        assert_eq!(time(Op::AllGather, 100, None), 3_000 + 3 * 4000);
        assert_eq!(time(Op::ReduceScatter, 100, None), 3_000 + 3 * 1000);
        assert_eq!(time(Op::AllToAll, 100, None), 3_000 + 3 * 1000);
        assert_eq!(time(Op::Broadcast, 100, None), 3_000 + 4000);
        assert_eq!(time(Op::Gather, 100, None), 3_000 + 3 * 4000);
        assert_eq!(time(Op::Scatter, 100, None), 3_000 + 3 * 4000);
        assert_eq!(time(Op::Barrier, 0, None), 2_000);
        let counts = || Some(Counts::Of([100, 0, 1, 9].into()));
        assert_eq!(time(Op::AllGather, 0, counts()), 3_000 + 110 * 40);
        assert_eq!(time(Op::ReduceScatter, 110, counts()), 3_000 + 110 * 40);
        let between = Counts::Between([0, 1, 0, 0].into(), [0, 0, 7, 0].into());
        assert_eq!(time(Op::AllToAll, 1, Some(between)), 3_000 + 7 * 40);
    }

    /// Kills: latencies one after the other, a message that overtakes.
    #[test]
    fn messages_share_the_bandwidth_and_overlap_in_latency() {
        let link = "1us,1GB/s".parse().unwrap();
        let (mut line, start) = (Line::default(), Instant::now());
        let mut at = |us: u64, bytes| {
            (line.arrival(&link, start + Duration::from_micros(us), bytes) - start).as_micros()
        };
        assert_eq!([at(0, 5_000), at(0, 2_000), at(20, 1_000)], [6, 8, 22]);
        let never = Link::new(Duration::ZERO, f64::MIN_POSITIVE).unwrap();
        assert!(line.arrival(&never, start, 1) > start && line.arrival(&never, start, usize::MAX) > start);
    }
}
