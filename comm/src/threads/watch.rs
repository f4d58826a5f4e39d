//! State that waiting ranks watch: which ranks failed, finished or sleep, and for which they wait.
//!
//! A waiting rank spins, then yields, then sleeps until the rank it waits for wakes it. Before it sleeps, it
//! records that rank. A rank that changes something looks for such sleepers after the change, so no rank
//! sleeps through one. A long sleep is announced, and the announcing rank looks for a cycle of waiting ranks.
mod told;

use self::told::Tells;
pub(super) use super::arrival::{Arrival, Arrivals, PendingCalls, Wait};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use crate::sync::{Instant, Mutex, OnceLock, Thread, fence, lock, park_timeout, thread, yield_now};
use crate::{CommError, RankRecord, Result};
use std::sync::Arc;
use std::time::Duration;

/// Polls before the first yield. If ranks share cores, a spinning rank blocks the one it waits for.
const SPINS: usize = if cfg!(loom) { 0 } else { 4_000 };
const SPINS_ON_SHARED_CORES: usize = if cfg!(loom) { 0 } else { 20 };
/// Yields before the first sleep.
const YIELDS: usize = if cfg!(loom) { 0 } else { 500 };
/// Longest time for these yields, if many ranks share a core.
const MOST_YIELDING: Duration = Duration::from_millis(1);
/// Length of a sleep before it is announced; short in tests, so that they announce many.
const NAP: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 10_000 });
/// Length of a sleep that tests check: a rank that was not woken fails, and does not sleep on to its limit.
const LONG: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::MAX };

/// The ranks of one world.
pub(crate) struct Watch {
    ranks: Box<[WatchedRank]>,
    records: Vec<Arc<RankRecord>>,
    failed: OnceLock<(usize, String)>, // the first, and its reason
    limit: Duration,
    spins: usize,
    tells: OnceLock<Tells>, // set if ranks are processes
}

/// The first rank that left a call of a group early, and why. No rank may enter another call of the group.
#[derive(Default)]
pub(crate) struct Broken(OnceLock<(usize, String)>);

#[repr(align(128))]
#[derive(Default)]
struct WatchedRank {
    asleep_on: AtomicUsize, // the rank waited for, plus one; 0 if awake
    finished: AtomicBool,
    thread: Mutex<Option<Thread>>,
    waits: Mutex<Option<Waits>>,
    blames: OnceLock<(usize, String)>, // the rank whose failure it has met, and why that failed
}

/// An announced wait.
struct Waits {
    on: usize,
    call: String,
    pending: PendingCalls,
    over: bool, // the rank has given up: ranks that wait for it can name why it does not arrive
}

impl Watch {
    /// Makes a watch of ranks with these records; a wait ends after `limit`.
    pub(crate) fn new(records: Vec<Arc<RankRecord>>, limit: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if records.len() <= cores { SPINS } else { SPINS_ON_SHARED_CORES };
        let ranks = records.iter().map(|_| WatchedRank::default()).collect();
        Self { ranks, records, failed: OnceLock::new(), limit, spins, tells: OnceLock::new() }
    }
    /// Makes a watch of ranks that share their cores with other worlds: no rank spins for long.
    pub(crate) fn on_shared_cores(self) -> Self {
        Self { spins: SPINS_ON_SHARED_CORES, ..self }
    }
    /// Returns the record of a rank's calls.
    pub(crate) fn record(&self, rank: usize) -> &Arc<RankRecord> {
        &self.records[rank]
    }
    /// # Errors
    /// [`CommError::Dead`] if a rank has failed.
    pub(crate) fn alive(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some((rank, reason)) => Err(CommError::Dead { rank: *rank, reason: reason.clone() }),
        }
    }
    /// # Errors
    /// [`CommError::Dead`] if a rank failed, [`CommError::Broken`] if one left a call of this group early.
    pub(super) fn unbroken(&self, group: &Broken) -> Result<()> {
        self.alive()?;
        let broken = |(rank, reason): (usize, String)| Err(CommError::Broken { rank, reason });
        group.0.get().cloned().map_or(Ok(()), broken)
    }
    /// Breaks a group: a rank leaves a call early. The others get its reason. Only the first break counts.
    pub(super) fn breaks(&self, group: &Broken, ranks: &[usize], (rank, reason): (usize, String)) {
        let _ = group.0.set((rank, reason));
        fence(SeqCst); // a rank that goes inside or sleeps sees the break, or is found here
        for &rank in ranks {
            self.wake_any(rank);
        }
    }
    /// Returns the first failure of all.
    pub(crate) fn failure(&self) -> Option<&(usize, String)> {
        self.failed.get()
    }
    /// Records that a rank has ended with an error. If it met another rank's failure, that one is to blame.
    pub(crate) fn fail(&self, rank: usize, reason: &str) {
        let blamed = self.ranks[rank].blames.get().cloned();
        let _ = self.failed.set(blamed.unwrap_or_else(|| (rank, reason.to_string()))); // the first counts
        self.wake_all();
    }
    /// Records that a rank has ended without an error.
    pub(crate) fn finish(&self, rank: usize) {
        self.ranks[rank].finished.store(true, SeqCst);
        self.wake_all();
    }
    /// True if a rank has ended without an error.
    pub(crate) fn has_finished(&self, rank: usize) -> bool {
        self.ranks[rank].finished.load(SeqCst)
    }
    /// Records the rank whose failure this rank has met, if the error is one.
    pub(crate) fn blame(&self, rank: usize, error: &CommError) {
        if let CommError::Dead { rank: other, reason } | CommError::Broken { rank: other, reason } = error {
            let _ = self.ranks[rank].blames.set((*other, reason.clone())); // the first counts
        }
    }
    /// Wakes a rank that sleeps until `on` arrives. Call this after a change that it should see, and a fence.
    #[inline]
    pub(super) fn wake(&self, sleeper: usize, on: usize) {
        if self.ranks[sleeper].asleep_on.load(SeqCst) == on + 1 {
            self.unpark(sleeper);
        }
    }
    /// Wakes a rank, whatever it waits for. Call this like `wake`.
    pub(super) fn wake_any(&self, sleeper: usize) {
        if self.ranks[sleeper].asleep_on.load(SeqCst) != 0 {
            self.unpark(sleeper);
        }
    }
    fn wake_all(&self) {
        fence(SeqCst); // a sleeper sees the change, or is found asleep here
        (0..self.ranks.len()).for_each(|rank| self.wake_any(rank));
    }
    #[cold]
    fn unpark(&self, rank: usize) {
        if let Some(thread) = &*lock(&self.ranks[rank].thread) {
            thread.unpark();
        }
    }

    /// Returns when no rank is missing.
    ///
    /// # Errors
    /// If waiting is in vain; a missing rank has finished; ranks wait for each other; the wait took too long;
    /// or another thread of the rank waits already.
    #[inline]
    pub(super) fn wait_on(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        for _ in 0..self.spins {
            if wait.missing().next().is_none() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let from = Instant::now();
        for _ in 0..YIELDS {
            if wait.missing().next().is_none() {
                return Ok(());
            }
            wait.in_vain()?;
            yield_now();
            if from.elapsed() > MOST_YIELDING {
                break;
            }
        }
        self.sleep(rank, wait)
    }

    #[cold]
    fn sleep(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        let me = &self.ranks[rank];
        let started = Instant::now();
        let Some(_awake) = SleeperRegistration::next(me) else {
            return Err(CommError::Busy { rank, call: wait.call().to_string() });
        };
        let mut announced = None;
        let mut tells = self.tells_of(rank);
        while let Some(on) = wait.missing().next() {
            if announced.is_some_and(|other| other != on) {
                (announced, *lock(&me.waits)) = (None, None);
            }
            me.asleep_on.store(on + 1, SeqCst);
            fence(SeqCst); // a rank whose change is not seen below sees the line above
            wait.in_vain()?;
            self.nobody_missing_has_finished(wait)?;
            let left = self.limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return self.late(wait);
            }
            let awake = tells.as_ref().map_or(LONG, |_| LONG.min(self.told_after()));
            let nap = left.min(if announced.is_some() { awake } else { NAP });
            let asleep = Instant::now();
            if wait.missing().next() == Some(on) {
                park_timeout(nap);
            }
            #[cfg(test)]
            if asleep.elapsed() >= LONG {
                self.was_woken(rank, wait, on);
            }
            if announced.is_none() && asleep.elapsed() >= NAP && wait.missing().next() == Some(on) {
                announced = Some(on);
                let waits =
                    Waits { on, call: wait.call().to_string(), pending: wait.pending(on), over: false };
                *lock(&me.waits) = Some(waits);
                self.no_ring(rank)?;
            }
            if let Some(tells) = tells.as_mut().filter(|_| started.elapsed() >= self.told_after()) {
                tells.waits(on, wait);
                self.no_ring(rank)?;
            }
        }
        *lock(&me.waits) = None;
        if let Some(mut tells) = tells {
            tells.goes_on();
        }
        Ok(())
    }
    fn nobody_missing_has_finished(&self, wait: &impl Wait) -> Result<()> {
        for rank in wait.missing() {
            // `finished` is read before `missing`: what the rank did before it finished is visible by now.
            if self.has_finished(rank) && wait.missing().any(|missing| missing == rank) {
                return Err(CommError::Finished { rank, call: wait.call().to_string() });
            }
        }
        Ok(())
    }
    /// # Errors
    /// [`CommError::Deadlock`] if this rank waits for ranks that wait for it.
    fn no_ring(&self, rank: usize) -> Result<()> {
        self.ring(rank).map_or(Ok(()), |waits| Err(CommError::Deadlock { waits }))
    }
    /// Returns the cycle of ranks, from this one on, in which each waits for the next and so none can arrive.
    fn ring(&self, rank: usize) -> Option<Vec<(usize, String)>> {
        let mut ring = vec![(rank, self.announced(rank)?)];
        while let Some((_, (on, _))) = ring.last() {
            let on = *on;
            if on == rank {
                break;
            }
            if ring.iter().any(|(member, _)| *member == on) {
                return None; // a cycle without this rank: its members report it
            }
            ring.push((on, self.announced(on)?));
        }
        // Read forwards, a rank may reach one wait after that was read, and the next before that was read.
        // Read backwards from this rank, which does not move, each rank is stuck because the next is.
        let stuck = |(rank, (on, _)): &(usize, (usize, String))| {
            self.announced(*rank).is_some_and(|(still_on, _)| still_on == *on)
        };
        ring.iter().rev().all(stuck).then(|| ring.into_iter().map(|(rank, (_, call))| (rank, call)).collect())
    }
    /// Returns the error of a wait that reached the limit.
    ///
    /// # Errors
    /// Always, unless the last missing rank has arrived by now.
    fn late(&self, wait: &impl Wait) -> Result<()> {
        let missing: Vec<_> = wait.missing().collect();
        let Some(first) = missing.first() else { return Ok(()) };
        wait.in_vain()?; // a rank that gave up meanwhile had arrived, and has reported why
        let mut chain: Vec<(usize, usize, String)> = Vec::new();
        let mut next = *first;
        while let Some((on, call)) = self.waited(next).filter(|_| chain.iter().all(|link| link.0 != next)) {
            chain.push((next, on, call));
            next = on;
        }
        let arrived = wait.members().into_iter().filter(|rank| !missing.contains(rank)).collect();
        Err(CommError::Late { missing, arrived, call: wait.call().to_string(), limit: self.limit, chain })
    }
    /// True if a rank has announced that it sleeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn sleeps(&self, rank: usize) -> bool {
        self.announced(rank).is_some()
    }
    /// Returns the rank that a rank announced to wait for and that has still not arrived, and in which call.
    fn announced(&self, rank: usize) -> Option<(usize, String)> {
        self.announcement(rank, |waits| !waits.over && (waits.pending)())
    }
    /// Returns the rank that a rank waits for, and in which call, or waited for last if it has given up.
    pub(crate) fn waited(&self, rank: usize) -> Option<(usize, String)> {
        self.announcement(rank, |waits| waits.over || (waits.pending)())
    }
    /// Records the rank that a rank has waited for in vain, and in which call, unless one is recorded.
    pub(crate) fn gave_up(&self, rank: usize, on: usize, call: String) {
        let given_up = Waits { on, call, pending: Box::new(|| true), over: true };
        lock(&self.ranks[rank].waits).get_or_insert(given_up);
    }
    fn announcement(&self, rank: usize, counts: impl Fn(&Waits) -> bool) -> Option<(usize, String)> {
        let waits = lock(&self.ranks[rank].waits);
        waits.as_ref().filter(|waits| counts(waits)).map(|waits| (waits.on, waits.call.clone()))
    }
}

/// Registration of the thread to wake for a rank; the rank may be asleep while this lives.
struct SleeperRegistration<'a>(&'a WatchedRank);
impl<'a> SleeperRegistration<'a> {
    /// Registers this thread as the one to wake for the rank; `None` if another one is registered.
    fn next(rank: &'a WatchedRank) -> Option<Self> {
        let mut thread = lock(&rank.thread);
        if thread.is_some() {
            return None;
        }
        *thread = Some(thread::current());
        Some(Self(rank))
    }
}
impl Drop for SleeperRegistration<'_> {
    fn drop(&mut self) {
        self.0.asleep_on.store(0, SeqCst);
        if let Some(waits) = &mut *lock(&self.0.waits) {
            waits.over = true;
        }
        *lock(&self.0.thread) = None;
    }
}

#[cfg(test)]
impl Watch {
    /// Makes a watch of ranks of no world.
    pub(super) fn alone(ranks: usize, limit: Duration) -> Self {
        let start = std::time::Instant::now();
        Self::new(
            (0..ranks)
                .map(|rank| RankRecord::new(rank, start, crate::trace::Traced::Never))
                .map(|record| Arc::new(record.counting_waits(true)))
                .collect(),
            limit,
        )
    }
    /// Checks that a rank was woken, after a long sleep until `on` arrives.
    ///
    /// # Panics
    /// If what the rank waits for has changed, and no rank wakes it.
    fn was_woken(&self, rank: usize, wait: &impl Wait, on: usize) {
        let change = || {
            if wait.missing().next() != Some(on) {
                return Some("came".to_string());
            }
            let vain = wait.in_vain().and_then(|()| self.nobody_missing_has_finished(wait));
            vain.err().map(|why| format!("cannot come: {why}"))
        };
        let (Some(change), again) = (change(), Instant::now()) else { return };
        park_timeout(LONG); // the waking rank may not have got round to it
        assert!(
            again.elapsed() < LONG,
            "nobody woke rank {rank}, asleep in {}: rank {on} {change}",
            wait.call()
        );
    }
}

/// Longest wait in tests for what happens unless something is broken: a rank that is late is named then.
#[cfg(test)]
pub(crate) const PATIENT: Duration = Duration::from_secs(10);

#[cfg(all(test, not(loom)))]
mod tests;
