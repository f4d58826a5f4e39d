//! Record of one rank's calls: counts of all, the last few, open requests, and, if a trace is taken, all
//! calls with their times.
use crate::flight::{CallOutcome, Flight, LastCalls};
use crate::ledger::Counters;
use crate::trace::{Did, Stretch, Traced, events};
use crate::{Call, CallRecord, CommError, Event, Ledger, Op, Result, TimeUse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensor::ProfileEntry;

/// Number of calls per rank that a flight recorder shows.
pub(crate) const KEPT: usize = 4;

/// Record of one rank, in cache lines that no other rank's calls write.
#[repr(align(128))]
pub(crate) struct RankRecord {
    rank: usize,
    start: Instant, // of all times
    when: Traced,
    traced: AtomicBool,
    counts_waits: bool,
    log: Mutex<RankLog>,
}

#[derive(Default)]
struct RankLog {
    begun: usize,
    counters: Counters,
    last: [Option<Flight>; KEPT],      // call i at i mod KEPT
    open: Vec<Flight>,                 // requests that have not arrived
    forgotten: Option<String>,         // the first request that was dropped before it was waited for
    lists: Vec<Arc<[usize]>>,          // counts in use by calls, or free for reuse
    stretches: Vec<Stretch>,           // if traced
    calls: usize,                      // number of calls among these
    waits: BTreeMap<usize, RankWaits>, // if counted, by the rank waited for
}

/// Waits of a rank for another one that arrived last, in all calls of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankWaits {
    /// The rank that waited.
    pub rank: usize,
    /// The rank that it waited for.
    pub on: usize,
    /// Number of waits.
    pub waits: usize,
    /// Sum of their seconds.
    pub seconds: f64,
    /// Seconds of the longest.
    pub longest_seconds: f64,
    /// The call of the longest, with its place in the source.
    pub longest_call: String,
}

/// A call under way: its number on this rank, from 1, and its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    number: usize,
    since: Instant,
}

impl RankLog {
    /// Sets the outcome of a call. Of requests that failed, only the last is kept.
    fn close(&mut self, number: usize, outcome: CallOutcome) {
        let done = matches!(outcome, CallOutcome::Done(_));
        self.open.retain(|flight| {
            let this = flight.number == number;
            if this { !done } else { done || flight.outcome == CallOutcome::UnderWay }
        });
        let flights = self.last[number % KEPT].iter_mut().chain(&mut self.open);
        flights.filter(|flight| flight.number == number).for_each(|flight| flight.outcome = outcome);
    }
}

impl RankRecord {
    /// Makes an empty record. Times count from `start`.
    pub(crate) fn new(rank: usize, start: Instant, when: Traced) -> Self {
        let traced = (when == Traced::Always).into();
        Self { rank, start, when, traced, counts_waits: false, log: Mutex::default() }
    }
    /// The same record, which also counts waits if `counts`.
    pub(crate) fn counting_waits(self, counts: bool) -> Self {
        Self { counts_waits: counts, ..self }
    }
    /// Returns true if waits are timed: for a trace, or to be counted.
    #[inline(always)]
    pub(crate) fn times_waits(&self) -> bool {
        self.counts_waits || self.traced()
    }
    /// Returns the counts of all calls.
    pub(crate) fn ledger(&self) -> Ledger {
        self.log().counters.snapshot()
    }
    /// Returns true if times are kept for a trace.
    #[inline(always)]
    pub(crate) fn traced(&self) -> bool {
        self.traced.load(Relaxed)
    }
    /// Starts a profile. Returns false if there is no trace to profile for.
    pub(crate) fn profile(&self) -> bool {
        let traced = self.when != Traced::Never;
        self.traced.store(traced, Relaxed);
        traced
    }
    /// Ends a profile, and adds its work to the trace.
    pub(crate) fn profiled(&self, worked: Vec<ProfileEntry>) {
        self.traced.store(self.when == Traced::Always, Relaxed);
        let work = |ProfileEntry { work, from, to }| Stretch {
            did: Did::Known(TimeUse::work(work)),
            from: from - self.start,
            to: to - self.start,
        };
        self.log().stretches.extend(worked.into_iter().map(work));
    }
    /// Locks the log, even if poisoned: a count that overflows unwinds under the lock, but leaves the log
    /// whole.
    fn log(&self) -> MutexGuard<'_, RankLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Begins a call that sends `sent` elements. A request stays open until it is waited for.
    ///
    /// # Errors
    /// [`CommError::Forgotten`] if a request was dropped before this call.
    pub(crate) fn begin(&self, call: &Call, sent: usize, request: bool) -> Result<Begun> {
        let mut log = self.log();
        let since = Instant::now();
        self.nothing_forgotten(&log)?;
        log.begun += 1;
        let number = log.begun;
        let flight = || Flight { number, began: since, outcome: CallOutcome::UnderWay, call: call.clone() };
        log.last[number % KEPT] = Some(flight());
        if request {
            log.open.push(flight());
        }
        log.counters.add(call, sent);
        Ok(Begun { number, since })
    }
    /// Number of calls that have begun, which is the number of the last one.
    #[cfg(any(test, feature = "mutants"))]
    pub(crate) fn number(&self) -> usize {
        self.log().begun
    }
    /// Start of the last call.
    pub(crate) fn last_began(&self) -> Option<Instant> {
        let log = self.log();
        log.last[log.begun % KEPT].as_ref().map(|flight| flight.began)
    }
    /// Ends a call. In the trace the rank is in it from its beginning or, for a request, from `waited`, the
    /// start of the wait.
    pub(crate) fn end<T>(&self, begun: Begun, waited: Option<Instant>, call: &Call, outcome: &Result<T>) {
        let mut log = self.log();
        let now = Instant::now();
        log.close(
            begun.number,
            if outcome.is_ok() { CallOutcome::Done(now) } else { CallOutcome::Failed(now) },
        );
        if self.traced() {
            log.calls += 1;
            log.stretches.push(self.until_now(Did::Call(call.clone()), waited.unwrap_or(begun.since)));
        }
    }
    /// Adds the start of a message that this rank sends to the trace.
    pub(crate) fn sends(&self, begun: Begun, call: &Call) {
        if self.traced() && call.op == Op::Send {
            let stretch = self.until_now(Did::Start(call.clone()), begun.since);
            self.log().stretches.push(stretch);
        }
    }
    /// Records that a request was dropped before it was waited for.
    pub(crate) fn forget(&self, begun: Begun, call: &Call) {
        let mut log = self.log();
        log.close(begun.number, CallOutcome::Forgotten);
        log.forgotten.get_or_insert_with(|| call.to_string());
    }
    fn nothing_forgotten(&self, log: &RankLog) -> Result<()> {
        let forgotten = |call: &String| CommError::Forgotten { rank: self.rank, call: call.clone() };
        log.forgotten.as_ref().map_or(Ok(()), |call| Err(forgotten(call)))
    }
    /// Checks that no request is open, at the end of a rank that returned no error.
    ///
    /// # Errors
    /// [`CommError::Forgotten`] if the rank never waited for a request.
    pub(crate) fn nothing_open(&self) -> Result<()> {
        let mut log = self.log();
        let open = log.open.iter().find(|flight| flight.outcome == CallOutcome::UnderWay);
        let open = open.map(|flight| flight.call.to_string());
        log.forgotten = log.forgotten.take().or(open);
        self.nothing_forgotten(&log)
    }
    /// Returns these numbers as a list that calls can keep. Reuses a list that no call has any more, if there
    /// is one.
    pub(crate) fn list(&self, numbers: &[usize]) -> Arc<[usize]> {
        let lists = &mut self.log().lists;
        for list in lists.iter_mut().filter(|list| list.len() == numbers.len()) {
            if let Some(free) = Arc::get_mut(list) {
                free.copy_from_slice(numbers);
                return list.clone();
            }
        }
        lists.push(numbers.into());
        lists[lists.len() - 1].clone()
    }
    fn until_now(&self, did: Did, from: Instant) -> Stretch {
        Stretch { did, from: from - self.start, to: self.start.elapsed() }
    }
    /// Adds time spent waiting for other ranks, inside a call, to the trace.
    pub(crate) fn waited(&self, from: Instant) {
        self.spent(|| TimeUse::Wait, from);
    }
    /// Adds a wait for rank `on`, which arrived last, if waits are counted.
    pub(crate) fn waited_for(&self, on: usize, time: Duration, call: &Call) {
        if !self.counts_waits {
            return;
        }
        let mut log = self.log();
        let seconds = time.as_secs_f64();
        let none = RankWaits {
            rank: self.rank,
            on,
            waits: 0,
            seconds: 0.0,
            longest_seconds: -1.0,
            longest_call: String::new(),
        };
        let sum = log.waits.entry(on).or_insert(none);
        (sum.waits, sum.seconds) = (sum.waits + 1, sum.seconds + seconds);
        if seconds > sum.longest_seconds {
            (sum.longest_seconds, sum.longest_call) = (seconds, call.to_string());
        }
    }
    /// Takes the waits counted since the last call, by the rank waited for.
    pub(crate) fn take_waits(&self) -> Vec<RankWaits> {
        std::mem::take(&mut self.log().waits).into_values().collect()
    }
    /// Adds time spent on `what` to the trace, if one is taken.
    pub(crate) fn spent(&self, what: impl FnOnce() -> TimeUse, from: Instant) {
        if self.traced() {
            let stretch = self.until_now(Did::Known(what()), from);
            self.log().stretches.push(stretch);
        }
    }
    /// Returns the last calls and all requests that have not arrived, oldest first.
    pub(crate) fn flights(&self) -> Vec<Flight> {
        let log = self.log();
        let mut flights: Vec<_> = log.last.iter().flatten().chain(&log.open).cloned().collect();
        flights.sort_by_key(|flight| flight.number);
        flights.dedup_by_key(|flight| flight.number);
        flights
    }
    /// Returns the last calls, and the rank that this one waited for at the end.
    pub(crate) fn last_calls(&self, waits: Option<(usize, String)>) -> LastCalls {
        LastCalls::of(self.flights(), self.start, waits)
    }
    /// Number of calls that have ended so far while a trace was taken.
    pub(crate) fn calls_traced(&self) -> usize {
        self.log().calls
    }
    /// Returns the calls that have ended while a trace was taken.
    pub(crate) fn calls(&self) -> Vec<CallRecord> {
        let call = |stretch: &Stretch| match &stretch.did {
            Did::Call(call) => Some(call.into()),
            Did::Start(_) | Did::Known(_) => None,
        };
        self.log().stretches.iter().filter_map(call).collect()
    }
    /// Takes everything traced, in order of time, and empties the trace.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        let mut log = self.log();
        log.calls = 0;
        events(std::mem::take(&mut log.stretches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: another rank named for the one that forgot, a later request for the first.
    #[test]
    fn who_forgets_requests_is_named_with_the_first() {
        let record = RankRecord::new(2, Instant::now(), Traced::Never);
        let call = |rows| Call { op: Op::Send, rows, ..Call::barrier() };
        let start = |rows| record.begin(&call(rows), 0, true).unwrap();
        let of = |rows| Err(CommError::Forgotten { rank: 2, call: call(rows).to_string() });
        assert_eq!(record.nothing_open(), Ok(()));
        let (first, second) = (start(1), start(2));
        record.forget(second, &call(2));
        assert_eq!((record.begin(&call(3), 0, false).map(drop), record.nothing_open()), (of(2), of(2)));
        record.forget(first, &call(1));
        assert_eq!(record.begin(&call(4), 0, false).map(drop), of(2));
        let kept = RankRecord::new(2, Instant::now(), Traced::Never);
        kept.begin(&call(1), 0, true).unwrap();
        kept.begin(&call(2), 0, true).unwrap();
        assert_eq!(kept.nothing_open(), of(1), "it was kept to the end");
    }

    /// Kills: a list that a call still has given to another, one that nobody has left aside, one of another
    /// length.
    #[test]
    fn lists_are_used_again_when_no_call_has_them() {
        let record = RankRecord::new(0, Instant::now(), Traced::Never);
        let (first, second) = (record.list(&[1, 2]), record.list(&[3, 4]));
        assert_eq!((&first[..], &second[..]), (&[1, 2][..], &[3, 4][..]));
        let place = first.as_ptr();
        drop(first);
        assert_ne!(record.list(&[5]).as_ptr(), place);
        let third = record.list(&[5, 6]);
        assert_eq!((third.as_ptr(), &third[..], &second[..]), (place, &[5, 6][..], &[3, 4][..]));
    }
}
