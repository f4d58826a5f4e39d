//! Started calls: each rank posts its windows, leaves them alone and goes on. A waiting rank does the shares
//! that are left, for all ranks. So the result is the same, in rank order, whichever rank comes first, and no
//! threads but the ranks' own are needed.
//!
//! Posts are written under a lock until all ranks have posted, and only read from then on. A share is claimed
//! by a count. A rank that has waited until all shares are done may touch its windows again: no other rank
//! touches them any more.
use super::slow::{Slow, pause};
use super::watch::{Arrival, Arrivals, Broken, Watch};
use crate::call::windows::{AllWindows, Posted};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{Instant, Mutex, fence, lock, yield_now};
use crate::{Call, CommError, Post, Result};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// The started calls of one group.
pub(super) struct Started {
    ranks: Arc<[usize]>, // of the world
    watch: Arc<Watch>,
    slow: Option<Arc<Slow>>,
    counts: Arc<WaitCounts>,
    flow: Mutex<Flow>,
    broken: Broken,
}

/// Counts that waiting ranks read without the lock.
struct WaitCounts {
    posted: Box<[AtomicUsize]>, // by rank: number of posts
    // by rank: the number of the first withdrawn post, plus one; 0 if there is none
    withdrawn: Box<[AtomicUsize]>,
}

impl Arrivals for WaitCounts {
    /// True if a rank has not made the post of this number, or has withdrawn a post up to it.
    #[inline(always)]
    fn not_arrived(&self, rank: usize, number: usize) -> bool {
        let withdrawn = self.withdrawn[rank].load(Acquire);
        self.posted[rank].load(Acquire) <= number || (1..=number + 1).contains(&withdrawn)
    }
}

/// Posts in the order of their numbers; places are reused.
#[derive(Default)]
struct Flow {
    first: usize, // the number of the first place
    places: VecDeque<Arc<MeetingPlace>>,
    spare: Vec<Arc<MeetingPlace>>,
}

/// Meeting place of the posts of one number.
#[derive(Default)]
struct MeetingPlace {
    posts: UnsafeCell<Posts>,
    came: AtomicUsize, // ranks whose posts stand; changed under the lock
    next: AtomicUsize, // first share that no rank has claimed
    done: AtomicUsize, // shares
    left: AtomicUsize, // ranks
}
// SAFETY: posts are written under the lock of the flow, until all ranks have posted, and only read from then
// on.
unsafe impl Send for MeetingPlace {}
// SAFETY: as above.
unsafe impl Sync for MeetingPlace {}

/// Posts of all ranks. The post of call `c` and rank `r` is at `c·ranks + r`.
#[derive(Default)]
struct Posts {
    all: Vec<Option<Posted>>,
    until: Option<Instant>,                // when a slow link has carried the calls
    refused: Vec<Option<(usize, String)>>, // by rank: a rank that disagrees, and its call; empty if all agree
}

/// Does one rank's share of a call; gets the rank, the target of its result, all windows, and the call.
pub(super) type RankWork<'a> = &'a dyn Fn(usize, *mut (), &AllWindows, &Call);

impl Started {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>, slow: Option<Arc<Slow>>) -> Self {
        let counts = || ranks.iter().map(|_| AtomicUsize::new(0)).collect();
        let counts = Arc::new(WaitCounts { posted: counts(), withdrawn: counts() });
        Self { counts, ranks, watch, slow, flow: Mutex::default(), broken: Broken::default() }
    }
    /// Posts the windows of some calls, which meet together: for each call where the rank gives, and where it
    /// takes.
    ///
    /// # Errors
    /// If a rank has failed.
    ///
    /// # Safety
    /// The windows have the number of elements of their calls. No other code touches them before `finish` or
    /// `withdraw` of this post returns.
    pub(super) unsafe fn post(
        &self,
        rank: usize,
        calls: impl Iterator<Item = ([*mut (); 2], Call)>,
    ) -> Result<Post> {
        self.watch.alive()?;
        let n = self.ranks.len();
        let mut flow = lock(&self.flow);
        let number = self.counts.posted[rank].load(Relaxed);
        while flow.places.len() <= number - flow.first {
            let place = flow.spare.pop().unwrap_or_default();
            flow.places.push_back(place);
        }
        let place = flow.places[number - flow.first].clone();
        // SAFETY: not all ranks have posted, since this rank has not, and the lock is held.
        let posts = unsafe { &mut *place.posts.get() };
        for (c, ([give, take], call)) in calls.enumerate() {
            if posts.all.len() < (c + 1) * n {
                posts.all.resize_with((c + 1) * n, || None);
            }
            posts.all[c * n + rank] = Some(Posted { call, give, take });
        }
        if place.came.fetch_add(1, Relaxed) + 1 == n {
            posts.agree(&self.ranks);
            let calls = posts.all.iter().step_by(n).flatten().map(|posted| &posted.call);
            posts.until = self.slow.as_ref().map(|slow| slow.collectives(calls));
        }
        self.counts.posted[rank].store(number + 1, Release);
        drop(flow);
        fence(SeqCst); // a sleeper sees the new count, or is found asleep here
        self.ranks.iter().for_each(|&sleeper| self.watch.wake(sleeper, self.ranks[rank]));
        Ok(Post::started(rank, number))
    }
    /// Waits until all ranks have posted, does the shares that are left, and returns when all are done. Ends
    /// the post, even on an error.
    ///
    /// # Errors
    /// Those of every call of a group.
    pub(super) fn finish(&self, post: Post, call: &Call, work: RankWork) -> Result<()> {
        let me = self.ranks[post.from];
        let number = post.number;
        let vain = &|| self.watch.unbroken(&self.broken);
        let arrival = Arrival { ranks: &self.ranks, comings: &self.counts, number, vain, call };
        loop {
            if let Err(error) = self.watch.wait(me, &arrival) {
                // break the group before the others miss this rank
                self.watch.breaks(&self.broken, &self.ranks, (me, error.to_string()));
                self.withdraw(post, work);
                self.watch.blame(me, &error);
                return Err(error);
            }
            let flow = lock(&self.flow);
            if flow.places[number - flow.first].came.load(Relaxed) == self.ranks.len() {
                break;
            } // else a rank withdrew after its count was read: its windows are its own
        }
        let (refused, until) = self.complete(post, work);
        if let Some((peer, theirs)) = refused {
            return Err(CommError::Mismatch { rank: me, mine: call.to_string(), peer, theirs });
        }
        if let Some(until) = until {
            pause(&self.watch, me, until);
        }
        Ok(())
    }
    /// Withdraws a post; if all ranks have posted, completes it instead.
    pub(super) fn withdraw(&self, post: Post, work: RankWork) {
        let flow = lock(&self.flow);
        let place = &flow.places[post.number - flow.first];
        if place.came.load(Relaxed) < self.ranks.len() {
            place.came.fetch_sub(1, Relaxed); // so the count never reaches all ranks
            let withdrawn = &self.counts.withdrawn[post.from];
            if withdrawn.load(Relaxed) == 0 {
                withdrawn.store(post.number + 1, Release);
            }
            return;
        }
        drop(flow);
        self.complete(post, work);
    }
    /// Completes a post that all ranks have made, and leaves it. Returns a rank that disagrees and its call,
    /// if there is one, and when a slow link has carried the post.
    fn complete(&self, post: Post, work: RankWork) -> (Option<(usize, String)>, Option<Instant>) {
        let flow = lock(&self.flow);
        let place = flow.places[post.number - flow.first].clone();
        drop(flow);
        // SAFETY: all ranks have posted, so posts are only read.
        let posts = unsafe { &*place.posts.get() };
        if posts.refused.is_empty() {
            place.complete(posts, self.ranks.len(), work);
        }
        let outcome = (posts.refused.get(post.from).cloned().flatten(), posts.until);
        drop(place);
        self.leave(post.number);
        outcome
    }
    /// Leaves a number, for one rank; after the last rank its place is free.
    fn leave(&self, number: usize) {
        let n = self.ranks.len();
        let mut flow = lock(&self.flow);
        flow.places[number - flow.first].left.fetch_add(1, AcqRel);
        while flow.places.front().is_some_and(|place| place.left.load(Acquire) == n) {
            let mut place = flow.places.pop_front().expect("just checked");
            flow.first += 1;
            // A rank that has left has dropped its reference, or will in a moment.
            if let Some(own) = Arc::get_mut(&mut place) {
                own.posts.get_mut().clear();
                for count in [&own.came, &own.next, &own.done, &own.left] {
                    count.store(0, Relaxed);
                }
                flow.spare.push(place);
            }
        }
    }
}

impl MeetingPlace {
    /// Does the shares that are left, and waits for those that other ranks do.
    fn complete(&self, posts: &Posts, n: usize, work: RankWork) {
        let shares = posts.all.len();
        loop {
            let share = self.next.fetch_add(1, Relaxed);
            if share >= shares {
                break;
            }
            let _done = Done(&self.done);
            let Posted { call, take, .. } = posts.all[share].as_ref().expect("all have come");
            work(share % n, *take, &AllWindows::Posted(&posts.all[share / n * n..][..n]), call);
        }
        while self.done.load(Acquire) < shares {
            yield_now();
        }
    }
}

/// Counts a share as done when dropped, even by a panic.
struct Done<'a>(&'a AtomicUsize);
impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Release);
    }
}

impl Posts {
    fn clear(&mut self) {
        self.all.clear();
        self.refused.clear();
        self.until = None;
    }
    /// Records for each rank another one that disagrees with it, if any ranks disagree.
    fn agree(&mut self, ranks: &[usize]) {
        let n = ranks.len();
        let differ = |of: &[Option<Posted>], a: usize, b: usize| match (&of[a], &of[b]) {
            (Some(Posted { call, .. }), Some(theirs)) => {
                call.key() != theirs.call.key() || !call.fits(a, &theirs.call, b)
            }
            (mine, theirs) => mine.is_some() != theirs.is_some(),
        };
        let other = |rank: usize| {
            let mut calls = self.all.chunks(n);
            let found = calls.find_map(|c| (0..n).find(|&peer| differ(c, rank, peer)).map(|peer| (peer, c)));
            found.map(|(peer, c)| {
                let text = |theirs: &Posted| theirs.call.to_string();
                (ranks[peer], c[peer].as_ref().map_or_else(|| "fewer calls together".into(), text))
            })
        };
        let agreed: bool = (0..n).all(|rank| other(rank).is_none());
        if !agreed {
            self.refused = (0..n).map(other).collect();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
