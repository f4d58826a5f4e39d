//! Where the ranks of a group meet: each has a seat, shows its window and what it means to do with it, and waits.
use super::started::Posted;
use super::watch::{Arrival, Broken, Comings, Watch};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use crate::sync::{fence, yield_now};
use crate::{Call, CommError, Result};
use std::ptr::from_ref;
use std::sync::Arc;

/// The meeting place of one group.
pub(super) struct Rendezvous {
    seats: Arc<[Seat]>,
    ranks: Arc<[usize]>, // of the world
    watch: Arc<Watch>,
    broken: Broken,
}

/// What peers look at lies in one cache line, what they rarely look at in another.
#[repr(C, align(128))]
#[derive(Default)]
struct Seat {
    epoch: AtomicUsize, // how often this rank has arrived
    window: AtomicPtr<()>,
    key: [AtomicUsize; 3],
    call: AtomicPtr<Call>,
    aside: Aside,
}
#[repr(align(64))]
#[derive(Default)]
struct Aside {
    inside: AtomicBool, // touches its peers' windows
    busy: AtomicBool,   // is in a call
}

/// The windows of all ranks, for those who are inside.
pub(crate) enum AllWindows<'a> {
    /// Of ranks that meet.
    Seats(Seats<'a>),
    /// Of ranks that have posted a call.
    Posted(&'a [Option<Posted>]),
}
/// Where ranks that meet show theirs.
pub(crate) struct Seats<'a>(&'a [Seat]);
impl<'a> AllWindows<'a> {
    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Seats(Seats(seats)) => seats.len(),
            Self::Posted(posted) => posted.len(),
        }
    }
    /// The window of a rank of the group, of the type it was shown with.
    #[inline(always)]
    pub(crate) fn of<S>(&self, rank: usize) -> *mut S {
        match self {
            Self::Seats(Seats(seats)) => seats[rank].window.load(Relaxed).cast(),
            Self::Posted(posted) => posted[rank].as_ref().expect("all have come").give.cast(),
        }
    }
    /// What a rank of the group gives and where it takes. Ranks that meet show both where their place joins.
    pub(super) fn both(&self, rank: usize) -> [*mut (); 2] {
        match self {
            // SAFETY: each shows such a pair, which lives where the rank made its call.
            Self::Seats(_) => unsafe { *self.of::<[*mut (); 2]>(rank) },
            Self::Posted(posted) => posted[rank].as_ref().map(|p| [p.give, p.take]).expect("all have come"),
        }
    }
    /// The call of a rank of the group.
    pub(super) fn call(&self, rank: usize) -> &'a Call {
        match self {
            // SAFETY: the call lives where its rank made it, and that rank does not leave while we are inside.
            Self::Seats(Seats(seats)) => unsafe { &*seats[rank].call.load(Relaxed) },
            Self::Posted(posted) => &posted[rank].as_ref().expect("all have come").call,
        }
    }
}

impl Rendezvous {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>) -> Self {
        let seats = ranks.iter().map(|_| Seat::default()).collect();
        Self { seats, ranks, watch, broken: Broken::default() }
    }
    /// One collective. All ranks of the group meet; where all mean the same, `work` runs and may touch their windows,
    /// which stay public until all have done their work.
    ///
    /// # Errors
    /// Those of every call of a group.
    #[inline]
    pub(super) fn collective<S>(
        &self,
        seat: usize,
        window: *mut S,
        call: &Call,
        work: impl FnOnce(&AllWindows),
    ) -> Result<()> {
        let outcome = self.unbroken().and_then(|()| Visit::begin(self, seat, call)).and_then(|visit| {
            let outcome = self.meet(seat, window.cast(), call, work);
            visit.end(&outcome);
            outcome
        });
        if let Err(error) = &outcome {
            self.watch.blame(self.ranks[seat], error);
        }
        outcome
    }
    fn meet(&self, seat: usize, window: *mut (), call: &Call, work: impl FnOnce(&AllWindows)) -> Result<()> {
        let (me, key) = (&self.seats[seat], call.key());
        me.window.store(window, Relaxed); // peers look at these lines meanwhile: so all is written at once
        me.call.store(from_ref(call).cast_mut(), Relaxed);
        for (slot, part) in me.key.iter().zip(key) {
            slot.store(part, Relaxed);
        }
        self.arrive(seat, call)?;
        let inside = Inside::enter(&me.aside.inside);
        self.unbroken()?; // after having gone inside, or the one who leaves would not see us
        self.agree(seat, call, key)?;
        work(&AllWindows::Seats(Seats(&self.seats)));
        drop(inside);
        self.arrive(seat, call)
    }
    /// Fails if any rank means something else. Only for those who are inside.
    fn agree(&self, seat: usize, call: &Call, key: [usize; 3]) -> Result<()> {
        for (peer, other) in self.seats.iter().enumerate() {
            let same = other.key.iter().zip(key).all(|(theirs, mine)| theirs.load(Relaxed) == mine);
            if same && call.counts.is_none() {
                continue;
            }
            let theirs = AllWindows::Seats(Seats(&self.seats)).call(peer);
            if !same || !call.fits(seat, theirs, peer) {
                let (rank, peer) = (self.ranks[seat], self.ranks[peer]);
                let (mine, theirs) = (call.to_string(), theirs.to_string());
                return Err(CommError::Mismatch { rank, mine, peer, theirs });
            }
        }
        Ok(())
    }
    /// A barrier.
    #[inline]
    fn arrive(&self, seat: usize, call: &Call) -> Result<()> {
        let epoch = self.seats[seat].epoch.load(Relaxed) + 1;
        self.seats[seat].epoch.store(epoch, Release);
        fence(SeqCst); // who sleeps looked at the epoch before, or is found asleep here
        for &sleeper in &*self.ranks {
            self.watch.wake(sleeper, self.ranks[seat]);
        }
        let vain = &|| self.unbroken();
        let arrival = Arrival { ranks: &self.ranks, comings: &self.seats, number: epoch, vain, call };
        self.watch.wait(self.ranks[seat], &arrival)
    }
    /// # Errors
    /// That a rank has failed, or left a call of this group early.
    fn unbroken(&self) -> Result<()> {
        self.watch.unbroken(&self.broken)
    }
}

impl Comings for [Seat] {
    #[inline(always)]
    fn misses(&self, place: usize, epoch: usize) -> bool {
        self[place].epoch.load(Acquire) < epoch
    }
}

/// Set while a rank touches its peers' windows.
struct Inside<'a>(&'a AtomicBool);
impl<'a> Inside<'a> {
    fn enter(flag: &'a AtomicBool) -> Self {
        flag.store(true, Relaxed);
        fence(SeqCst); // who leaves broke the group before, or sees us here
        Self(flag)
    }
}
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// One rank's stay in a collective; ends it in whatever way the rank leaves.
struct Visit<'a> {
    place: &'a Rendezvous,
    seat: usize,
    complete: bool,
    reason: Option<String>,
}
impl<'a> Visit<'a> {
    fn begin(place: &'a Rendezvous, seat: usize, call: &Call) -> Result<Self> {
        if place.seats[seat].aside.busy.swap(true, Acquire) {
            return Err(CommError::Busy { rank: place.ranks[seat], call: call.to_string() });
        }
        Ok(Self { place, seat, complete: false, reason: None })
    }
    fn end(mut self, outcome: &Result<()>) {
        self.complete = outcome.is_ok();
        self.reason = outcome.as_ref().err().map(ToString::to_string);
    }
}
impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let place = self.place;
        if !self.complete {
            let reason = self.reason.take().unwrap_or_else(|| "it panicked".to_string());
            place.watch.breaks(&place.broken, &place.ranks, (place.ranks[self.seat], reason));
            for seat in &*place.seats {
                while seat.aside.inside.load(Acquire) {
                    yield_now();
                }
            }
        }
        place.seats[self.seat].aside.busy.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::threads::tests::until;
    use crate::threads::watch::PATIENT;
    use std::time::Duration;

    fn place(ranks: usize, limit: Duration) -> Rendezvous {
        Rendezvous::new((0..ranks).collect(), Arc::new(Watch::alone(ranks, limit)))
    }
    fn enter(place: &Rendezvous, seat: usize, work: impl FnOnce(&AllWindows)) -> Result<()> {
        place.collective(seat, std::ptr::null_mut::<f32>(), &Call::barrier(), work)
    }

    /// Kills: a rank that leaves, so that its memory may go, while a peer reads it.
    #[test]
    fn who_leaves_early_waits_for_those_inside() {
        let place = place(2, Duration::from_millis(5));
        let left = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let inside = Inside::enter(&place.seats[1].aside.inside);
            threads.spawn(|| {
                let late = enter(&place, 0, |_| ());
                left.store(true, SeqCst);
                assert!(matches!(late, Err(CommError::Late { .. })));
            });
            until(|| place.unbroken().is_err());
            for _ in 0..1000 {
                assert!(!left.load(SeqCst), "left while a peer was inside");
                std::thread::yield_now();
            }
            drop(inside);
        });
        assert!(left.load(SeqCst));
    }

    /// Kills: a rank that goes inside where another has left and taken its memory with it.
    #[test]
    fn nobody_goes_inside_once_a_rank_has_left() {
        let place = place(2, Duration::from_millis(5));
        let late = enter(&place, 0, |_| unreachable!("alone"));
        // Rank 1 was on its way already: it has looked whether the group is whole, and arrives now.
        let mut visit = Visit::begin(&place, 1, &Call::barrier()).unwrap();
        let broken = place.meet(1, std::ptr::null_mut(), &Call::barrier(), |_| unreachable!("inside"));
        visit.reason = Some(String::new());
        drop(visit);
        let reason = late.unwrap_err().to_string();
        assert!(reason.starts_with("rank 1 did not come within"), "{reason}");
        let expected = Err(CommError::Broken { rank: 0, reason });
        assert_eq!(broken, expected);
        assert_eq!(enter(&place, 1, |_| unreachable!("broken")), expected);
        assert_eq!(enter(&place, 0, |_| unreachable!("broken")), expected);
    }

    /// Kills: a rank left asleep by one that leaves.
    #[test]
    fn who_leaves_early_wakes_those_who_wait() {
        let place = place(3, PATIENT);
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| enter(&place, 2, |_| unreachable!("alone")));
            until(|| place.watch.sleeps(2));
            drop(Visit::begin(&place, 1, &Call::barrier()).unwrap());
            let expected = CommError::Broken { rank: 1, reason: "it panicked".into() };
            assert_eq!(sleeper.join().unwrap(), Err(expected));
        });
    }

    #[test]
    fn a_seat_is_two_cache_lines() {
        assert_eq!((size_of::<Seat>(), std::mem::offset_of!(Seat, aside)), (128, 64));
    }
}
