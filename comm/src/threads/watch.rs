//! What all ranks of a world watch while they wait: who failed, who finished, who sleeps, who waits for whom.
//!
//! A rank that waits spins, then yields, then sleeps until the one it waits for wakes it. Before that it records in whose
//! favour it sleeps, and whoever changes something looks for such sleepers after the change; so nobody sleeps through
//! one. A sleep that lasts is announced, and its announcer looks for a ring of ranks that wait for each other.
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use crate::sync::{Instant, Mutex, OnceLock, Thread, fence, lock, park_timeout, thread, yield_now};
use crate::{Call, CommError, Record, Result};
use std::sync::Arc;
use std::time::Duration;

/// Looks before the first yield. Where ranks share cores, one that spins keeps the one it waits for from running.
const SPINS: usize = if cfg!(loom) { 0 } else { 4_000 };
const SPINS_ON_SHARED_CORES: usize = if cfg!(loom) { 0 } else { 20 };
/// Yields before the first sleep.
const YIELDS: usize = if cfg!(loom) { 0 } else { 500 };
/// How long these may take, where many ranks share a core.
const MOST_YIELDING: Duration = Duration::from_millis(1);
/// How long a sleep lasts before it is announced; short in tests, so that they announce many.
const NAP: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 10_000 });
/// In tests, a sleep of this length is looked into: a rank that nobody woke fails, and does not sleep on to its limit.
const LONG: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::MAX };

/// What a rank waits for. Ranks are ranks of the world.
pub(super) trait Wait {
    /// Who has not come; the wait is over when nobody is missing.
    fn missing(&self) -> impl Iterator<Item = usize>;
    /// Why waiting is in vain, if it is.
    fn in_vain(&self) -> Result<()>;
    /// All who should come, the waiting rank among them.
    fn members(&self) -> Vec<usize>;
    /// Whether, at any time and from anywhere, this rank is still missing and can still come.
    fn pending(&self, on: usize) -> Pending;
    /// What the rank is in.
    fn call(&self) -> &Call;
}
pub(super) type Pending = Box<dyn Fn() -> bool + Send>;

/// Whether the rank at a place of a group has not come so often.
pub(super) trait Comings: Send + Sync + 'static {
    /// It has not, by now.
    fn misses(&self, place: usize, number: usize) -> bool;
}

/// All ranks of a group have come so often.
pub(super) struct Arrival<'a, C: ?Sized> {
    pub(super) ranks: &'a [usize], // of the world
    pub(super) comings: &'a Arc<C>,
    pub(super) number: usize,
    pub(super) vain: &'a dyn Fn() -> Result<()>,
    pub(super) call: &'a Call,
}

impl<C: Comings + ?Sized> Wait for Arrival<'_, C> {
    #[inline(always)]
    fn missing(&self) -> impl Iterator<Item = usize> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(place, _)| self.comings.misses(*place, self.number)).map(|(_, rank)| *rank)
    }
    fn in_vain(&self) -> Result<()> {
        (self.vain)()
    }
    fn members(&self) -> Vec<usize> {
        self.ranks.to_vec()
    }
    fn pending(&self, on: usize) -> Pending {
        let (comings, number) = (self.comings.clone(), self.number);
        let place = self.ranks.iter().position(|&rank| rank == on).expect("a member");
        Box::new(move || comings.misses(place, number))
    }
    fn call(&self) -> &Call {
        self.call
    }
}

/// The ranks of one world.
pub(super) struct Watch {
    ranks: Box<[Rank]>,
    records: Vec<Arc<Record>>,
    failed: OnceLock<(usize, String)>, // the first, and its reason
    limit: Duration,
    spins: usize,
}

/// Who was the first to leave a call of a group early, and why; nobody may enter another.
#[derive(Default)]
pub(super) struct Broken(OnceLock<(usize, String)>);

#[repr(align(128))]
#[derive(Default)]
struct Rank {
    asleep_on: AtomicUsize, // the rank waited for, plus one; 0 if awake
    finished: AtomicBool,
    thread: Mutex<Option<Thread>>,
    waits: Mutex<Option<Waits>>,
    blames: OnceLock<(usize, String)>, // whose failure it has met, and why that failed
}

/// An announced wait.
struct Waits {
    on: usize,
    call: String,
    pending: Pending,
    over: bool, // the rank has given up, so those who wait for it can name why it does not come
}

impl Watch {
    /// Over ranks with these records; a wait ends after `limit`.
    pub(super) fn new(records: Vec<Arc<Record>>, limit: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if records.len() <= cores { SPINS } else { SPINS_ON_SHARED_CORES };
        let ranks = records.iter().map(|_| Rank::default()).collect();
        Self { ranks, records, failed: OnceLock::new(), limit, spins }
    }
    /// A watch of ranks that share their cores with other worlds: nobody spins for long.
    pub(super) fn on_shared_cores(self) -> Self {
        Self { spins: SPINS_ON_SHARED_CORES, ..self }
    }
    /// What is kept of a rank's calls.
    pub(super) fn record(&self, rank: usize) -> &Arc<Record> {
        &self.records[rank]
    }
    /// # Errors
    /// [`CommError::Dead`] if a rank has failed.
    pub(super) fn alive(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some((rank, reason)) => Err(CommError::Dead { rank: *rank, reason: reason.clone() }),
        }
    }
    /// # Errors
    /// [`CommError::Dead`] if a rank has failed, [`CommError::Broken`] if one has left a call of this group early.
    pub(super) fn unbroken(&self, group: &Broken) -> Result<()> {
        self.alive()?;
        let broken = |(rank, reason): (usize, String)| Err(CommError::Broken { rank, reason });
        group.0.get().cloned().map_or(Ok(()), broken)
    }
    /// A rank leaves a call of these ranks early: they are told why; only the first counts.
    pub(super) fn breaks(&self, group: &Broken, ranks: &[usize], (rank, reason): (usize, String)) {
        let _ = group.0.set((rank, reason));
        fence(SeqCst); // who goes inside, or sleeps, sees that or is found here
        for &rank in ranks {
            self.rouse(rank);
        }
    }
    /// The first failure of all, if any.
    pub(super) fn failure(&self) -> Option<&(usize, String)> {
        self.failed.get()
    }
    /// A rank has ended with an error. If what it met was another's failure, that one is to blame.
    pub(super) fn fail(&self, rank: usize, reason: &str) {
        let blamed = self.ranks[rank].blames.get().cloned();
        let _ = self.failed.set(blamed.unwrap_or_else(|| (rank, reason.to_string()))); // only the first counts
        self.wake_all();
    }
    /// A rank has ended without an error.
    pub(super) fn finish(&self, rank: usize) {
        self.ranks[rank].finished.store(true, SeqCst);
        self.wake_all();
    }
    /// Whether a rank has ended without an error.
    pub(super) fn has_finished(&self, rank: usize) -> bool {
        self.ranks[rank].finished.load(SeqCst)
    }
    /// Notes whose failure a rank has met, if this is one.
    pub(super) fn blame(&self, rank: usize, error: &CommError) {
        if let CommError::Dead { rank: other, reason } | CommError::Broken { rank: other, reason } = error {
            let _ = self.ranks[rank].blames.set((*other, reason.clone())); // only the first counts
        }
    }
    /// Wakes a rank if it sleeps in favour of `on`. To call after a change that such a sleeper should see, and a fence.
    #[inline]
    pub(super) fn wake(&self, sleeper: usize, on: usize) {
        if self.ranks[sleeper].asleep_on.load(SeqCst) == on + 1 {
            self.unpark(sleeper);
        }
    }
    /// Wakes a rank, whatever it waits for. To call like `wake`.
    pub(super) fn rouse(&self, sleeper: usize) {
        if self.ranks[sleeper].asleep_on.load(SeqCst) != 0 {
            self.unpark(sleeper);
        }
    }
    fn wake_all(&self) {
        fence(SeqCst); // who sleeps looked before the change, or is found asleep here
        (0..self.ranks.len()).for_each(|rank| self.rouse(rank));
    }
    #[cold]
    fn unpark(&self, rank: usize) {
        if let Some(thread) = &*lock(&self.ranks[rank].thread) {
            thread.unpark();
        }
    }

    /// Returns when nobody is missing.
    ///
    /// # Errors
    /// That waiting is in vain; that a missing rank has finished; that ranks wait for each other; that it took too long;
    /// that another thread of the rank waits already.
    #[inline]
    pub(super) fn wait(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        if !self.records[rank].traced() || wait.missing().next().is_none() {
            return self.wait_on(rank, wait);
        }
        let from = std::time::Instant::now();
        let outcome = self.wait_on(rank, wait);
        self.records[rank].waited(from);
        outcome
    }
    #[inline]
    fn wait_on(&self, rank: usize, wait: &impl Wait) -> Result<()> {
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
        let (me, started) = (&self.ranks[rank], Instant::now());
        let Some(_awake) = Awake::next(me) else {
            return Err(CommError::Busy { rank, call: wait.call().to_string() });
        };
        let mut announced = None;
        while let Some(on) = wait.missing().next() {
            if announced.is_some_and(|other| other != on) {
                (announced, *lock(&me.waits)) = (None, None);
            }
            me.asleep_on.store(on + 1, SeqCst);
            fence(SeqCst); // whoever changes what is looked at below, and has not observed the line above, is observed here
            wait.in_vain()?;
            self.nobody_missing_has_finished(wait)?;
            let left = self.limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return self.late(wait);
            }
            let nap = left.min(if announced.is_some() { LONG } else { NAP });
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
                if let Some(waits) = self.ring(rank) {
                    return Err(CommError::Deadlock { waits });
                }
            }
        }
        *lock(&me.waits) = None;
        Ok(())
    }
    fn nobody_missing_has_finished(&self, wait: &impl Wait) -> Result<()> {
        for rank in wait.missing() {
            // Finished first, missing then: what it did before it finished is visible by now.
            if self.has_finished(rank) && wait.missing().any(|missing| missing == rank) {
                return Err(CommError::Finished { rank, call: wait.call().to_string() });
            }
        }
        Ok(())
    }
    /// The ring of ranks, from this one on, in which each waits for the next and so none can come.
    fn ring(&self, rank: usize) -> Option<Vec<(usize, String)>> {
        let mut ring = vec![(rank, self.announced(rank)?)];
        while let Some((_, (on, _))) = ring.last() {
            let on = *on;
            if on == rank {
                break;
            }
            if ring.iter().any(|(member, _)| *member == on) {
                return None; // a ring without this rank: theirs to report
            }
            ring.push((on, self.announced(on)?));
        }
        // Read forwards, a rank may have come to one wait after we looked there, and gone on to the next before we
        // looked there. Read backwards from this rank, which does not move, each one is stuck because the next is.
        let stuck = |(rank, (on, _)): &(usize, (usize, String))| {
            self.announced(*rank).is_some_and(|(still_on, _)| still_on == *on)
        };
        ring.iter().rev().all(stuck).then(|| ring.into_iter().map(|(rank, (_, call))| (rank, call)).collect())
    }
    /// # Errors
    /// Always, unless the last one has come by now.
    fn late(&self, wait: &impl Wait) -> Result<()> {
        let missing: Vec<_> = wait.missing().collect();
        let Some(first) = missing.first() else { return Ok(()) };
        wait.in_vain()?; // who gave up meanwhile had come, and has said why
        let mut chain: Vec<(usize, usize, String)> = Vec::new();
        let mut next = *first;
        while let Some((on, call)) = self.waited(next).filter(|_| chain.iter().all(|link| link.0 != next)) {
            chain.push((next, on, call));
            next = on;
        }
        let arrived = wait.members().into_iter().filter(|rank| !missing.contains(rank)).collect();
        Err(CommError::Late { missing, arrived, call: wait.call().to_string(), limit: self.limit, chain })
    }
    /// Whether a rank has announced that it sleeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn sleeps(&self, rank: usize) -> bool {
        self.announced(rank).is_some()
    }
    /// Whom a rank waits for, and in which call, if it has announced that and that one has still not come.
    fn announced(&self, rank: usize) -> Option<(usize, String)> {
        self.announcement(rank, |waits| !waits.over && (waits.pending)())
    }
    /// Whom a rank waits for, and in which call, or for whom it waited last if it has given up.
    fn waited(&self, rank: usize) -> Option<(usize, String)> {
        self.announcement(rank, |waits| waits.over || (waits.pending)())
    }
    fn announcement(&self, rank: usize, counts: impl Fn(&Waits) -> bool) -> Option<(usize, String)> {
        let waits = lock(&self.ranks[rank].waits);
        waits.as_ref().filter(|waits| counts(waits)).map(|waits| (waits.on, waits.call.clone()))
    }
}

/// While this lives, a rank may be asleep.
struct Awake<'a>(&'a Rank);
impl<'a> Awake<'a> {
    /// From now on this thread is woken for the rank; none if another one is.
    fn next(rank: &'a Rank) -> Option<Self> {
        let mut thread = lock(&rank.thread);
        if thread.is_some() {
            return None;
        }
        *thread = Some(thread::current());
        Some(Self(rank))
    }
}
impl Drop for Awake<'_> {
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
    /// Over ranks of no world.
    pub(super) fn alone(ranks: usize, limit: Duration) -> Self {
        let start = std::time::Instant::now();
        Self::new(
            (0..ranks).map(|rank| Arc::new(Record::new(rank, start, crate::trace::Traced::Never))).collect(),
            limit,
        )
    }
    /// To call after a long sleep in favour of `on`.
    ///
    /// # Panics
    /// If what the rank waits for has changed, and nobody wakes it.
    fn was_woken(&self, rank: usize, wait: &impl Wait, on: usize) {
        let change = || {
            if wait.missing().next() != Some(on) {
                return Some("came".to_string());
            }
            let vain = wait.in_vain().and_then(|()| self.nobody_missing_has_finished(wait));
            vain.err().map(|why| format!("cannot come: {why}"))
        };
        let (Some(change), again) = (change(), Instant::now()) else { return };
        park_timeout(LONG); // who woke it may just not have got round to that
        assert!(
            again.elapsed() < LONG,
            "nobody woke rank {rank}, asleep in {}: rank {on} {change}",
            wait.call()
        );
    }
}

/// How long tests wait at most for what comes unless something is broken: who comes too late is named then.
#[cfg(test)]
pub(super) const PATIENT: Duration = Duration::from_secs(10);

#[cfg(all(test, not(loom)))]
mod tests;
