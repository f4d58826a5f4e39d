//! A slow link, to try interconnects and overlap on one machine: ranks wait as long as the bytes would take.
//!
//! Transfers wait in queues (`Queues`). A direct collective takes what an algorithm with the least traffic
//! would need, from when its last rank arrived: a number of rounds of α, and the bytes of the busiest rank
//! over β. In [`CommSchedule::time`](algorithms::CommSchedule::time) a rank gets one message at a time, so
//! the naive all-reduce, in which many send to one, is faster here than there. With little data, a collective
//! of fewer rounds would be faster.
//! ```text
//! all_reduce                    2(n−1)·α + 2(n−1)/n·N/β      a ring
//! all_gather, reduce_scatter    (n−1)·α + what the busiest rank sends round a ring
//! broadcast                     (n−1)·α + N/β                a chain that passes on each piece as it comes
//! gather, scatter, all_to_all   (n−1)·α + all that the busiest rank sends or gets
//! barrier                       ⌈log2 n⌉·α                   dissemination
//! ```
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
use super::watch::Watch;
use crate::sync::{Instant, Mutex, lock, yield_now};
use crate::{Call, Counts, Op};
use algorithms::Link;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Returns `start + time`, but at most a hundred years after `start`: an `Instant` cannot hold all times.
fn after(start: Instant, time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);
    start + time.min(LONGEST)
}

/// Times of a direct collective of `n` ranks over free links: until the first byte arrives, and while bytes
/// move.
fn collective_parts(link: &Link, call: &Call, n: usize) -> (Duration, Duration) {
    let moving = link.moving(busiest(call, n) * call.elem.size);
    (link.latency().saturating_mul(call.op.latencies(n) as u32), moving)
}

/// Elements that the busiest rank sends or gets, as far as this rank knows.
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

/// Pairs of ranks, sender first, between which the bytes of a collective of `n` ranks go: those that carry
/// bytes where the ledger counts them (`ledger.rs`). These are r → r+1 round a ring, without root−1 → root in
/// a broadcast; all → root in a gather, root → all in a scatter; all pairs in an all-to-all; none in a
/// barrier.
fn pairs(call: &Call, n: usize) -> impl Iterator<Item = [usize; 2]> + Clone + use<> {
    let &Call { op, root, .. } = call;
    let peers = match op {
        Op::AllReduce | Op::AllGather | Op::ReduceScatter | Op::Broadcast => 1..2, // to the right
        Op::Gather | Op::Scatter | Op::AllToAll => 1..n,
        Op::Barrier | Op::Send | Op::Receive => 0..0,
    };
    let carries = move |&[from, to]: &[usize; 2]| match op {
        Op::Broadcast => to != root,
        Op::Gather => to == root,
        Op::Scatter => from == root,
        _ => true,
    };
    (0..n).flat_map(move |from| peers.clone().map(move |right| [from, (from + right) % n])).filter(carries)
}

/// Queues of a world: when the last transfer from one rank to another has left. Ranks are ranks of the world.
///
/// Each pair of ranks has one queue in each direction, for all groups that both are in. A transfer begins
/// when the one before it in its queue has left, and not before it was sent; α + bytes/β later it has
/// arrived. So calls in flight share the bandwidth, their latencies overlap, and a blocking call takes its
/// turn like a started one. A message goes in the queue of its two ranks. A collective goes in the queues of
/// its [`pairs`], begins when all of these are free, and holds them until its bytes have left.
#[derive(Default)]
pub(super) struct Queues(Mutex<BTreeMap<[usize; 2], Instant>>);

impl Queues {
    /// Puts a transfer of this duration in the queues of all these pairs; returns its start, which is not
    /// before `sent`.
    fn enter(
        &self,
        pairs: impl Iterator<Item = [usize; 2]> + Clone,
        sent: Instant,
        moving: Duration,
    ) -> Instant {
        let mut free = lock(&self.0);
        let begins = pairs.clone().filter_map(|pair| free.get(&pair).copied()).fold(sent, Instant::max);
        free.extend(pairs.map(|pair| (pair, after(begins, moving))));
        begins
    }
}

/// Slow links of one group.
pub(super) struct Slow {
    link: Link,
    ranks: Arc<[usize]>, // of the world
    queues: Arc<Queues>,
    // ranks that still ask for the end of a blocking call, and that end
    meeting: Mutex<Option<(usize, Instant)>>,
}

impl Slow {
    pub(super) fn new(link: Link, ranks: Arc<[usize]>, queues: Arc<Queues>) -> Self {
        Self { link, ranks, queues, meeting: Mutex::new(None) }
    }
    /// Returns when a message of `bytes` bytes arrives that was sent at `sent`.
    pub(super) fn message(&self, pair: [usize; 2], sent: Instant, bytes: usize) -> Instant {
        let pair = std::iter::once(pair.map(|rank| self.ranks[rank]));
        after(self.queues.enter(pair, sent, self.link.moving(bytes)), self.link.time(bytes))
    }
    /// Returns when collectives end that all ranks have entered now, and that go together.
    pub(super) fn collectives<'a>(&self, calls: impl Iterator<Item = &'a Call> + Clone) -> Instant {
        let n = self.ranks.len();
        let [mut latency, mut moving] = [Duration::ZERO; 2];
        for (its_latency, its_moving) in calls.clone().map(|call| collective_parts(&self.link, call, n)) {
            (latency, moving) = (latency.max(its_latency), moving.saturating_add(its_moving));
        }
        let pairs = calls.flat_map(move |call| pairs(call, n)).map(|pair| pair.map(|rank| self.ranks[rank]));
        after(self.queues.enter(pairs, Instant::now(), moving), latency.saturating_add(moving))
    }
    /// Returns when the blocking collective ends that all ranks are in. Each rank asks once, and all get the
    /// same answer.
    pub(super) fn met(&self, call: &Call) -> Instant {
        let mut meeting = lock(&self.meeting);
        let first = || (self.ranks.len(), self.collectives(std::iter::once(call)));
        let (left, until) = meeting.unwrap_or_else(first);
        *meeting = (left > 1).then_some((left - 1, until));
        until
    }
}

/// Waits until `until`, unless a rank has failed.
pub(super) fn pause(watch: &Watch, rank: usize, until: Instant) {
    const NAP: Duration = Duration::from_millis(10);
    const EARLY: Duration = Duration::from_micros(100); // a sleep may last this much too long
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
    use crate::ledger::elements_sent;
    use std::collections::BTreeSet;

    fn call(op: Op, rows: usize, counts: Option<Counts>) -> Call {
        Call { op, rows, cols: 10, counts, ..Call::barrier() }
    }

    /// Kills: latencies or bytes of another operation, the mean taken for the busiest.
    #[test]
    fn collectives_take_what_their_algorithms_would() {
        let link = "1us,1GB/s".parse().unwrap(); // a nanosecond a byte
        let time = |op, rows, counts| {
            let (latency, moving) = collective_parts(&link, &call(op, rows, counts), 4);
            (latency + moving).as_nanos()
        };
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

    fn slow(ranks: &[usize], link: Link, queues: &Arc<Queues>) -> Slow {
        Slow::new(link, ranks.into(), queues.clone())
    }

    /// Kills: latencies one after the other, a message that overtakes, a queue for each group or for both
    /// directions.
    #[test]
    fn messages_of_a_pair_share_the_bandwidth_and_overlap_in_latency() {
        let (link, start, queues) = ("1us,1GB/s".parse().unwrap(), Instant::now(), Arc::default());
        let groups = [slow(&[3, 5], link, &queues), slow(&[5, 4, 3], link, &queues)];
        let at = |group: usize, pair, us: u64, bytes| {
            let sent = start + Duration::from_micros(us);
            (groups[group].message(pair, sent, bytes) - start).as_micros()
        };
        assert_eq!([at(0, [0, 1], 0, 5_000), at(1, [2, 0], 0, 2_000), at(0, [0, 1], 20, 1_000)], [6, 8, 22]);
        assert_eq!([at(0, [1, 0], 0, 5_000), at(1, [2, 1], 0, 5_000)], [6, 6], "other queues");
        let never = slow(&[0, 1], Link::new(Duration::ZERO, f64::MIN_POSITIVE).unwrap(), &queues);
        assert!([1, usize::MAX].map(|bytes| never.message([0, 1], start, bytes)) > [start; 2]);
    }

    /// Kills: a collective that goes past what is under way, of another group or of a message; one that waits
    /// for a pair which it does not use; ranks of one call that each take a turn of their own.
    #[test]
    fn collectives_take_their_turn_in_the_queues_of_their_pairs() {
        let (link, queues): (Link, _) = ("1us,1kB/s".parse().unwrap(), Arc::default()); // 1 ms a byte
        let [all, pair] = [&[0, 1, 2, 3][..], &[1, 2]].map(|ranks| slow(ranks, link, &queues));
        let seconds = |until: Instant, from: Instant| (until - from).as_secs();
        let from = Instant::now();
        let sum = call(Op::AllReduce, 1000, None); // 10 000 elements: 60 s among four, 40 s among two
        let together = [0; 4].map(|_| all.met(&sum));
        assert!(together == [together[0]; 4] && seconds(together[0], from) == 60);
        assert_eq!(seconds(pair.collectives(std::iter::once(&sum)), from), 60 + 40, "1 → 2 was taken");
        assert_eq!(seconds(all.message([1, 2], from, 1000), from), 100 + 1);
        assert_eq!(seconds(all.message([0, 1], from, 1000), from), 60 + 1);
        assert_eq!(seconds(all.met(&call(Op::Barrier, 0, None)), from), 0);
        let [one, other] = [0, 1].map(|root| Call { root, ..call(Op::Scatter, 25, None) }); // 3 s
        assert_eq!(seconds(all.collectives(std::iter::once(&one)), from), 61 + 3);
        assert_eq!(
            seconds(all.collectives([&one, &other].into_iter()), from),
            101 + 6,
            "together, when all are free"
        );
    }

    /// Kills: a pair that carries bytes where the ledger counts none, or the other way round.
    #[test]
    fn pairs_carry_bytes_from_those_who_send_by_the_ledger() {
        for (n, op) in (2..6).flat_map(|n| Op::ALL.iter().map(move |&op| (n, op))) {
            for root in 0..n {
                let call = Call { root, ..call(op, n, None) };
                let sends: BTreeSet<_> = pairs(&call, n).map(|[from, _]| from).collect();
                let counted = (0..n).filter(|&rank| op != Op::Send && elements_sent(&call, n, rank) > 0);
                assert!(sends.into_iter().eq(counted), "{op} of {n} ranks");
            }
        }
    }
}
