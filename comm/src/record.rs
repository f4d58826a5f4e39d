//! What is kept of one rank's calls: counts of all, the last few, requests not yet waited for, and, where a trace is
//! taken, everything with its times.
use crate::call::Call;
use crate::error::{CommError, Result};
use crate::flight::{Flight, Outcome};
use crate::ledger::Counters;
use crate::trace::{Event, Noted, events};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;
use tensor::Worked;

/// Calls of each rank that a flight recorder shows.
pub(crate) const KEPT: usize = 4;

/// One rank's record.
pub(crate) struct Record {
    rank: usize,
    counters: Counters,
    start: Instant, // of all times
    tells: Tells,
    traced: AtomicBool,
    log: Mutex<Log>,
    forgotten: OnceLock<String>, // the first request that was dropped before it was waited for
}

/// When a rank notes times for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// There is none.
    Nothing,
    /// While it takes a profile.
    Profiles,
    /// From beginning to end.
    All,
}

#[derive(Default)]
struct Log {
    begun: usize,
    last: [Option<Flight>; KEPT], // call i at i mod KEPT
    open: Vec<Flight>,            // requests that have not arrived
    noted: Vec<Noted>,            // where traced
    calls: usize,                 // among these
}

/// A call under way: its number on this rank, from 1, and when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    number: usize,
    since: Instant,
}

impl Log {
    /// What has become of a call. Of requests that failed the last one stays.
    fn tell(&mut self, begun: Begun, outcome: Outcome) {
        let done = matches!(outcome, Outcome::Done(_));
        self.open.retain(|flight| {
            let this = flight.number == begun.number;
            if this { !done } else { done || flight.outcome == Outcome::UnderWay }
        });
        let flights = self.last.iter_mut().flatten().chain(&mut self.open);
        flights.filter(|flight| flight.number == begun.number).for_each(|flight| flight.outcome = outcome);
    }
}

impl Record {
    pub(crate) fn new(rank: usize, start: Instant, tells: Tells) -> Self {
        let (log, forgotten, traced) = (Mutex::default(), OnceLock::new(), (tells == Tells::All).into());
        Self { rank, counters: Counters::default(), start, tells, traced, log, forgotten }
    }
    /// The counts of all calls.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Whether times are noted for a trace.
    #[inline(always)]
    pub(crate) fn traced(&self) -> bool {
        self.traced.load(Relaxed)
    }
    /// A profile begins; whether there is a trace that it is for.
    pub(crate) fn profile(&self) -> bool {
        let told = self.tells != Tells::Nothing;
        self.traced.store(told, Relaxed);
        told
    }
    /// It has ended, with this work.
    pub(crate) fn profiled(&self, worked: Vec<Worked>) {
        self.traced.store(self.tells == Tells::All, Relaxed);
        self.log().noted.extend(worked.into_iter().map(|worked| Noted::work(worked, self.start)));
    }
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics under this lock")
    }
    /// A call begins.
    ///
    /// # Errors
    /// [`CommError::Forgotten`] if a request was dropped before this call.
    pub(crate) fn begin(&self, call: &Call) -> Result<Begun> {
        self.nothing_forgotten()?;
        let (mut log, since) = (self.log(), Instant::now());
        log.begun += 1;
        let number = log.begun;
        let began = since - self.start;
        log.last[number % KEPT] =
            Some(Flight { number, began, outcome: Outcome::UnderWay, call: call.clone() });
        Ok(Begun { number, since })
    }
    /// How many calls have begun: the number of the last one.
    pub(crate) fn number(&self) -> usize {
        self.log().begun
    }
    /// It has ended; the rank was in it from the beginning, or, where it was a request, from when it `waited` for it.
    pub(crate) fn end<T>(&self, begun: Begun, waited: Option<Instant>, call: &Call, outcome: &Result<T>) {
        let (mut log, took) = (self.log(), begun.since.elapsed());
        log.tell(begun, if outcome.is_ok() { Outcome::Done(took) } else { Outcome::Failed(took) });
        if self.traced() {
            let (from, to) = (waited.unwrap_or(begun.since) - self.start, self.start.elapsed());
            log.calls += 1;
            log.noted.push(Noted::Call { call: call.clone(), from, to });
        }
    }
    /// A request has been started; it must be waited for.
    pub(crate) fn open(&self, Begun { number, since }: Begun, call: &Call) {
        let (began, outcome) = (since - self.start, Outcome::UnderWay);
        self.log().open.push(Flight { number, began, outcome, call: call.clone() });
    }
    /// A request is dropped that nobody waited for.
    pub(crate) fn forget(&self, begun: Begun, call: &Call) {
        self.log().tell(begun, Outcome::Forgotten);
        let _ = self.forgotten.set(call.to_string()); // only the first counts
    }
    fn nothing_forgotten(&self) -> Result<()> {
        match self.forgotten.get() {
            None => Ok(()),
            Some(call) => Err(CommError::Forgotten { rank: self.rank, call: call.clone() }),
        }
    }
    /// At the end of a rank that returned no error.
    ///
    /// # Errors
    /// [`CommError::Forgotten`] if it never waited for a request.
    pub(crate) fn nothing_open(&self) -> Result<()> {
        self.nothing_forgotten()?;
        match self.log().open.iter().find(|flight| flight.outcome == Outcome::UnderWay) {
            None => Ok(()),
            Some(flight) => Err(CommError::Forgotten { rank: self.rank, call: flight.call.to_string() }),
        }
    }
    /// Time spent waiting for other ranks, inside a call.
    pub(crate) fn waited(&self, from: Instant) {
        if self.traced() {
            let to = self.start.elapsed();
            self.log().noted.push(Noted::Wait { from: from - self.start, to });
        }
    }
    /// Time spent on something with a name.
    pub(crate) fn spent(&self, name: impl FnOnce() -> String, from: Instant) {
        if self.traced() {
            let to = self.start.elapsed();
            self.log().noted.push(Noted::Span { name: name(), from: from - self.start, to });
        }
    }
    /// The last calls, and all requests that have not arrived, oldest first.
    pub(crate) fn flights(&self) -> Vec<Flight> {
        let log = self.log();
        let mut flights: Vec<_> = log.last.iter().flatten().chain(&log.open).cloned().collect();
        flights.sort_by_key(|flight| flight.number);
        flights.dedup_by_key(|flight| flight.number);
        flights
    }
    /// Calls noted so far.
    pub(crate) fn calls_noted(&self) -> usize {
        self.log().calls
    }
    /// These in words.
    pub(crate) fn calls(&self) -> Vec<String> {
        let words = |noted: &Noted| match noted {
            Noted::Call { call, .. } => Some(call.to_string()),
            _ => None,
        };
        self.log().noted.iter().filter_map(words).collect()
    }
    /// All that was noted, in order of time; emptied.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        let mut log = self.log();
        log.calls = 0;
        events(std::mem::take(&mut log.noted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Op;

    /// Kills: another rank named for the one that forgot, a later request for the first.
    #[test]
    fn who_forgets_requests_is_named_with_the_first() {
        let record = Record::new(2, Instant::now(), Tells::Nothing);
        let call = |rows| Call { op: Op::Send, rows, ..Call::barrier() };
        let start = |rows| {
            let begun = record.begin(&call(rows)).unwrap();
            record.open(begun, &call(rows));
            begun
        };
        let of = |rows| Err(CommError::Forgotten { rank: 2, call: call(rows).to_string() });
        assert_eq!(record.nothing_open(), Ok(()));
        let (first, second) = (start(1), start(2));
        assert_eq!(record.nothing_open(), of(1), "it was kept to the end");
        record.forget(second, &call(2));
        assert_eq!((record.begin(&call(3)).map(drop), record.nothing_open()), (of(2), of(2)));
        record.forget(first, &call(1));
        assert_eq!(record.begin(&call(4)).map(drop), of(2));
    }
}
