//! Meeting of the ranks of a group: each rank has a seat, shows its window and its call there, and waits.
use super::slow::{Slow, pause};
use super::watch::{Arrival, Arrivals, Broken, Watch};
use crate::call::windows::{AllWindows, Seat};
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{fence, yield_now};
use crate::{Call, CommError, Result};
use std::ptr::from_ref;
use std::sync::Arc;

/// The meeting place of one group.
pub(super) struct Rendezvous {
    seats: Arc<[Seat]>,
    ranks: Arc<[usize]>, // of the world
    watch: Arc<Watch>,
    slow: Option<Arc<Slow>>,
    broken: Broken,
}

impl Rendezvous {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>, slow: Option<Arc<Slow>>) -> Self {
        let seats = ranks.iter().map(|_| Seat::default()).collect();
        Self { seats, ranks, watch, slow, broken: Broken::default() }
    }
    /// Makes one collective. All ranks of the group meet. If their calls agree, `work` runs and may touch
    /// their windows, which stay public until all ranks have done their work. A slow link adds its time.
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
        let me = self.ranks[seat];
        let mut until = None;
        let work = |windows: &AllWindows| {
            until = self.slow.as_ref().map(|slow| slow.met(call));
            work(windows);
        };
        let outcome = self.unbroken().and_then(|()| Visit::begin(self, seat, call)).and_then(|visit| {
            let outcome = self.meet(seat, window.cast(), call, work);
            visit.end(&outcome);
            outcome
        });
        match (&outcome, until) {
            (Err(error), _) => self.watch.blame(me, error),
            (Ok(()), Some(until)) => pause(&self.watch, me, until),
            (Ok(()), None) => {}
        }
        outcome
    }
    fn meet(&self, seat: usize, window: *mut (), call: &Call, work: impl FnOnce(&AllWindows)) -> Result<()> {
        let me = &self.seats[seat];
        let key = call.key();
        me.window.store(window, Relaxed); // peers read these lines meanwhile: so all is written at once
        me.call.store(from_ref(call).cast_mut(), Relaxed);
        for (slot, part) in me.key.iter().zip(key) {
            slot.store(part, Relaxed);
        }
        self.arrive(seat, call)?;
        let inside = Inside::enter(&me.aside.inside);
        self.unbroken()?; // once inside, or a leaving rank would not see this one
        self.agree(seat, call, key)?;
        work(&AllWindows::Seats(&self.seats));
        drop(inside);
        self.arrive(seat, call)
    }
    /// Fails if any rank's call differs. Only for ranks that are inside.
    fn agree(&self, seat: usize, call: &Call, key: [usize; 3]) -> Result<()> {
        for (peer, other) in self.seats.iter().enumerate() {
            let same = other.key.iter().zip(key).all(|(theirs, mine)| theirs.load(Relaxed) == mine);
            if same && call.counts.is_none() {
                continue;
            }
            let theirs = AllWindows::Seats(&self.seats).call(peer);
            if !same || !call.fits(seat, theirs, peer) {
                let rank = self.ranks[seat];
                let [mine, theirs] = [call, theirs].map(Call::to_string);
                return Err(CommError::Mismatch { rank, mine, peer: self.ranks[peer], theirs });
            }
        }
        Ok(())
    }
    /// Arrives at a barrier, and waits for all ranks.
    #[inline]
    fn arrive(&self, seat: usize, call: &Call) -> Result<()> {
        let epoch = self.seats[seat].epoch.load(Relaxed) + 1;
        self.seats[seat].epoch.store(epoch, Release);
        fence(SeqCst); // a sleeper sees the new epoch, or is found asleep here
        for &sleeper in &*self.ranks {
            self.watch.wake(sleeper, self.ranks[seat]);
        }
        let vain = &|| self.unbroken();
        let arrival = Arrival { ranks: &self.ranks, comings: &self.seats, number: epoch, vain, call };
        self.watch.wait(self.ranks[seat], &arrival)
    }
    /// Checks that the group can still meet.
    ///
    /// # Errors
    /// If a rank has failed, or has left a call of this group early.
    fn unbroken(&self) -> Result<()> {
        self.watch.unbroken(&self.broken)
    }
}

impl Arrivals for [Seat] {
    #[inline(always)]
    fn not_arrived(&self, place: usize, epoch: usize) -> bool {
        self[place].epoch.load(Acquire) < epoch
    }
}

/// Guard that marks a rank as touching its peers' windows.
struct Inside<'a>(&'a AtomicBool);
impl<'a> Inside<'a> {
    fn enter(flag: &'a AtomicBool) -> Self {
        flag.store(true, Relaxed);
        fence(SeqCst); // this rank sees the group broken, or a leaving rank sees it inside
        Self(flag)
    }
}
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// One rank's stay in a collective; ends it however the rank leaves.
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
        Rendezvous::new((0..ranks).collect(), Arc::new(Watch::alone(ranks, limit)), None)
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
        assert!(reason.starts_with("rank 1 did not arrive within"), "{reason}");
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
