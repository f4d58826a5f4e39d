//! What all ranks of a world watch while they wait: who failed, who finished, who sleeps, who waits for whom.
//!
//! A rank that waits spins, then yields, then sleeps until the one it waits for wakes it. Before that it says in whose
//! favour it sleeps, and whoever changes something looks for such sleepers after the change; so nobody sleeps through
//! one. A sleep that lasts is announced, and its announcer looks for a ring of ranks that wait for each other.
use crate::call::Call;
use crate::error::{CommError, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, fence};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Looks before the first yield. Where ranks share cores, one that spins keeps the one it waits for from running.
const SPINS: usize = 4_000;
const SPINS_ON_SHARED_CORES: usize = 20;
/// Yields before the first sleep.
const YIELDS: usize = 500;
/// How long a sleep lasts before it is announced; short in tests, so that they announce many.
const NAP: Duration = Duration::from_micros(if cfg!(test) { 100 } else { 10_000 });

/// What a rank waits for. Ranks are ranks of the world.
pub(super) trait Wait {
    /// Who has not come; the wait is over when nobody is missing.
    fn missing(&self) -> impl Iterator<Item = usize>;
    /// Why waiting is in vain, if it is.
    fn in_vain(&self) -> Result<()>;
    /// All who should come, the waiting rank among them.
    fn members(&self) -> Vec<usize>;
    /// Says, at any time and from anywhere, whether this rank is still missing and can still come.
    fn pending(&self, on: usize) -> Pending;
    /// What the rank is in.
    fn call(&self) -> &Call<'_>;
}
pub(super) type Pending = Box<dyn Fn() -> bool + Send>;

/// The ranks of one world.
pub(super) struct Watch {
    ranks: Box<[Rank]>,
    failed: OnceLock<(usize, String)>, // the first, and its reason
    limit: Duration,
    spins: usize,
}

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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}

impl Watch {
    pub(super) fn new(ranks: usize, limit: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if ranks <= cores { SPINS } else { SPINS_ON_SHARED_CORES };
        Self { ranks: (0..ranks).map(|_| Rank::default()).collect(), failed: OnceLock::new(), limit, spins }
    }
    /// # Errors
    /// [`CommError::Dead`] if a rank has failed.
    pub(super) fn alive(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some((rank, reason)) => Err(CommError::Dead { rank: *rank, reason: reason.clone() }),
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
    /// Notes whose failure a rank has met, if this is one.
    pub(super) fn blame(&self, rank: usize, error: &CommError) {
        if let CommError::Dead { rank: other, reason } | CommError::Broken { rank: other, reason } = error {
            let _ = self.ranks[rank].blames.set((*other, reason.clone())); // only the first counts
        }
    }
    /// Wakes a rank if it sleeps in favour of `on`. To call after a change that such a sleeper should see.
    #[inline]
    pub(super) fn wake(&self, sleeper: usize, on: usize) {
        if self.ranks[sleeper].asleep_on.load(SeqCst) == on + 1 {
            self.unpark(sleeper);
        }
    }
    /// Wakes a rank, whatever it waits for.
    pub(super) fn rouse(&self, sleeper: usize) {
        fence(SeqCst);
        if self.ranks[sleeper].asleep_on.load(SeqCst) != 0 {
            self.unpark(sleeper);
        }
    }
    fn wake_all(&self) {
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
    /// That waiting is in vain; that a missing rank has finished; that ranks wait for each other; that it took too long.
    #[inline]
    pub(super) fn wait(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        for look in 0..self.spins + YIELDS {
            if wait.missing().next().is_none() {
                return Ok(());
            }
            if look < self.spins {
                std::hint::spin_loop();
            } else {
                wait.in_vain()?;
                std::thread::yield_now();
            }
        }
        self.sleep(rank, wait)
    }

    #[cold]
    fn sleep(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        let (me, started) = (&self.ranks[rank], Instant::now());
        *lock(&me.thread) = Some(std::thread::current());
        let _awake = Awake(me);
        let mut announced = None;
        while let Some(on) = wait.missing().next() {
            if announced.is_some_and(|other| other != on) {
                (announced, *lock(&me.waits)) = (None, None);
            }
            me.asleep_on.store(on + 1, SeqCst);
            fence(SeqCst); // whoever changes what is looked at below, and has not seen the line above, is seen here
            wait.in_vain()?;
            self.nobody_missing_has_finished(wait)?;
            let left = self.limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return late(wait, started.elapsed());
            }
            let nap = if announced.is_some() { left } else { left.min(NAP) };
            let asleep = Instant::now();
            if wait.missing().next() == Some(on) {
                std::thread::park_timeout(nap);
            }
            if announced.is_none() && asleep.elapsed() >= NAP && wait.missing().next() == Some(on) {
                announced = Some(on);
                let waits = Waits { on, call: wait.call().to_string(), pending: wait.pending(on) };
                *lock(&me.waits) = Some(waits);
                if let Some(waits) = self.ring(rank) {
                    return Err(CommError::Deadlock { waits });
                }
            }
        }
        Ok(())
    }
    fn nobody_missing_has_finished(&self, wait: &impl Wait) -> Result<()> {
        for rank in wait.missing() {
            // Finished first, missing then: what it did before it finished is seen by now.
            if self.ranks[rank].finished.load(SeqCst) && wait.missing().any(|missing| missing == rank) {
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
                return None; // a ring without this rank: theirs to say
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
    /// Whether a rank has announced that it sleeps.
    #[cfg(test)]
    pub(super) fn sleeps(&self, rank: usize) -> bool {
        self.announced(rank).is_some()
    }
    /// Whom a rank waits for, and in which call, if it has said so and that one has still not come.
    fn announced(&self, rank: usize) -> Option<(usize, String)> {
        let waits = lock(&self.ranks[rank].waits);
        waits.as_ref().filter(|waits| (waits.pending)()).map(|waits| (waits.on, waits.call.clone()))
    }
}

/// While this lives, a rank may be asleep.
struct Awake<'a>(&'a Rank);
impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.asleep_on.store(0, SeqCst);
        *lock(&self.0.waits) = None;
    }
}

/// # Errors
/// Always, unless the last one has come by now.
fn late(wait: &impl Wait, waited: Duration) -> Result<()> {
    let missing: Vec<_> = wait.missing().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let arrived = wait.members().into_iter().filter(|rank| !missing.contains(rank)).collect();
    Err(CommError::Late { missing, arrived, call: wait.call().to_string(), waited })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Axis, Ranks};
    use crate::call::Op;
    use std::panic::Location;

    fn watch(ranks: usize) -> Watch {
        Watch::new(ranks, Duration::from_hours(1))
    }
    /// A wait of rank 1 for rank 0, who comes after so many looks.
    struct Looks<'a> {
        watch: &'a Watch,
        left: AtomicUsize,
        call: Call<'a>,
    }
    impl<'a> Looks<'a> {
        fn new(watch: &'a Watch, left: usize) -> Self {
            let (op, over, at) = (Op::Barrier, Ranks::all(Axis::Tp), Location::caller());
            let call =
                Call { op, reduce: None, peer: None, rows: 0, cols: 0, elem: "f32", over, label: None, at };
            Self { watch, left: AtomicUsize::new(left), call }
        }
    }
    impl Wait for Looks<'_> {
        fn missing(&self) -> impl Iterator<Item = usize> {
            let before = self.left.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1)));
            (before != Ok(0)).then_some(0).into_iter()
        }
        fn in_vain(&self) -> Result<()> {
            self.watch.alive()
        }
        fn members(&self) -> Vec<usize> {
            vec![0, 1]
        }
        fn pending(&self, _: usize) -> Pending {
            Box::new(|| true)
        }
        fn call(&self) -> &Call<'_> {
            &self.call
        }
    }
    /// What rank 1, asleep in favour of rank 0, is told after `change`.
    fn told(change: impl FnOnce(&Watch)) -> Result<()> {
        let watch = watch(3);
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| watch.wait(1, &Looks::new(&watch, usize::MAX)));
            while !watch.sleeps(1) {
                std::thread::yield_now();
            }
            change(&watch);
            sleeper.join().unwrap()
        })
    }

    /// Kills: a rank left asleep, here for an hour.
    #[test]
    fn who_fails_or_finishes_wakes_those_who_wait() {
        let dead = CommError::Dead { rank: 2, reason: "on fire".into() };
        assert_eq!(told(|watch| watch.fail(2, "on fire")), Err(dead));
        let finished = told(|watch| watch.finish(0)).unwrap_err().to_string();
        assert!(finished.starts_with("rank 0 has finished and will not come to barrier"), "{finished}");
    }

    fn announce(watch: &Watch, rank: usize, on: usize, pending: Pending) {
        *lock(&watch.ranks[rank].waits) = Some(Waits { on, call: format!("call {rank}"), pending });
    }

    #[test]
    fn who_comes_at_the_last_moment_has_come() {
        let watch = watch(2);
        assert_eq!(late(&Looks::new(&watch, 0), Duration::ZERO), Ok(()));
        let told = late(&Looks::new(&watch, 1), Duration::ZERO);
        assert!(
            matches!(told, Err(CommError::Late { missing, arrived, .. }) if (&missing[..], &arrived[..]) == (&[0], &[1]))
        );
    }

    /// Kills: a rank called finished that came, and finished, between two looks.
    #[test]
    fn who_came_before_it_finished_has_come() {
        let watch = watch(2);
        watch.finish(0);
        assert_eq!(watch.nobody_missing_has_finished(&Looks::new(&watch, 1)), Ok(()));
        assert!(watch.nobody_missing_has_finished(&Looks::new(&watch, 2)).is_err());
    }

    #[test]
    fn a_ring_is_told_from_the_rank_that_looks() {
        let watch = watch(5);
        for (rank, on) in [(1, 3), (3, 2), (2, 1), (4, 1)] {
            announce(&watch, rank, on, Box::new(|| true));
        }
        let ring = |rank| watch.ring(rank).map(|ring| ring.into_iter().map(|(r, _)| r).collect::<Vec<_>>());
        assert_eq!((ring(1), ring(2)), (Some(vec![1, 3, 2]), Some(vec![2, 1, 3])));
        assert_eq!((ring(4), ring(0)), (None, None)); // waits for a ring; does not wait
        announce(&watch, 3, 2, Box::new(|| false));
        assert_eq!(ring(1), None); // a wait that is over
        assert_eq!(watch.ring(2), None);
    }

    /// Kills: a ring read forwards only. Rank 1 comes to rank 0 right after it was looked at, and goes on to wait for
    /// rank 2, which waits for rank 0: a ring of three at three times, but at no time.
    #[test]
    fn a_ring_that_never_was_at_one_time_is_none() {
        let watch = watch(3);
        let looks = AtomicUsize::new(0);
        announce(&watch, 0, 1, Box::new(move || looks.fetch_add(1, SeqCst) == 0));
        announce(&watch, 1, 2, Box::new(|| true));
        announce(&watch, 2, 0, Box::new(|| true));
        assert_eq!(watch.ring(0), None);
    }

    #[test]
    fn only_the_first_failure_counts_and_an_echo_blames_its_cause() {
        let watch = watch(4);
        watch.blame(1, &CommError::Broken { rank: 0, reason: "late".into() });
        watch.blame(1, &CommError::Dead { rank: 3, reason: "later".into() });
        watch.blame(2, &CommError::Busy { rank: 2, call: "barrier".into() });
        assert_eq!(watch.alive(), Ok(()));
        watch.fail(1, "an echo");
        watch.fail(2, "too late");
        assert_eq!(watch.alive(), Err(CommError::Dead { rank: 0, reason: "late".into() }));
    }
}
