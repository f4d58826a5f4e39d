//! Calls that were started: each rank posts its windows, leaves them alone and goes on. Whoever waits does what is left to
//! do, share by share, for all ranks; so the result is the same, in rank order, whoever comes first, and no thread but the
//! ranks' own is needed.
//!
//! Posts are written under a lock until all ranks have come, and only read from then on. A share is taken by a count. Who has
//! waited until all shares are done may touch its windows again: nobody else does any more.
use super::slow::{Slow, pause};
use super::watch::{Arrival, Broken, Comings, Watch};
use super::windows::{AllWindows, Posted};
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
    counts: Arc<Counts>,
    flow: Mutex<Flow>,
    broken: Broken,
}

/// What ranks that wait look at, without the lock.
struct Counts {
    posted: Box<[AtomicUsize]>,    // by rank: how often
    withdrawn: Box<[AtomicUsize]>, // by rank: the number of the first post that was taken back, plus one; 0 if none was
}

impl Comings for Counts {
    /// Whether a rank has not posted so often, or has taken a post back.
    #[inline(always)]
    fn misses(&self, rank: usize, number: usize) -> bool {
        let withdrawn = self.withdrawn[rank].load(Acquire);
        self.posted[rank].load(Acquire) <= number || (1..=number + 1).contains(&withdrawn)
    }
}

/// Posts in the order of their numbers; places are used again.
#[derive(Default)]
struct Flow {
    first: usize, // the number of the first place
    places: VecDeque<Arc<Place>>,
    spare: Vec<Arc<Place>>,
}

/// Where the posts of one number meet.
#[derive(Default)]
struct Place {
    posts: UnsafeCell<Posts>,
    came: AtomicUsize, // ranks, less those that have taken their post back; changed under the lock
    next: AtomicUsize, // share to be done
    done: AtomicUsize, // shares
    left: AtomicUsize, // ranks
}
// SAFETY: posts are written under the lock of the flow, until all have come, and only read from then on.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// What ranks have posted. Of call `c` and rank `r` it stands at `c·ranks + r`.
#[derive(Default)]
struct Posts {
    all: Vec<Option<Posted>>,
    until: Option<Instant>,                // when a slow link has carried it
    refused: Vec<Option<(usize, String)>>, // by rank: who means something else, and what; empty if all mean the same
}

/// Does the share of one rank of a call: its rank, where what it takes goes, all windows, its call.
pub(super) type Work<'a> = &'a dyn Fn(usize, *mut (), &AllWindows, &Call);

impl Started {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>, slow: Option<Arc<Slow>>) -> Self {
        let counts = || ranks.iter().map(|_| AtomicUsize::new(0)).collect();
        let counts = Arc::new(Counts { posted: counts(), withdrawn: counts() });
        Self { counts, ranks, watch, slow, flow: Mutex::default(), broken: Broken::default() }
    }
    /// Posts the windows of some calls, of each what the rank gives and where it takes, one meeting for all of them.
    ///
    /// # Errors
    /// That a rank has failed.
    ///
    /// # Safety
    /// The windows have as many elements as the calls count. Nobody touches them before `finish` or `withdraw` of this post returns.
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
        // SAFETY: not all have come, as this rank has not, and the lock is held.
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
        fence(SeqCst); // who sleeps looked at the count before, or is found asleep here
        self.ranks.iter().for_each(|&sleeper| self.watch.wake(sleeper, self.ranks[rank]));
        Ok(Post::started(rank, number))
    }
    /// Waits until all ranks have posted, does what is left, and returns when all is done. The post ends here, however this
    /// returns.
    ///
    /// # Errors
    /// Those of every call of a group.
    pub(super) fn finish(&self, post: Post, call: &Call, work: Work) -> Result<()> {
        let me = self.ranks[post.from];
        let (number, vain) = (post.number, &|| self.watch.unbroken(&self.broken));
        let arrival = Arrival { ranks: &self.ranks, comings: &self.counts, number, vain, call };
        loop {
            if let Err(error) = self.watch.wait(me, &arrival) {
                self.watch.breaks(&self.broken, &self.ranks, (me, error.to_string())); // before others miss this rank
                self.withdraw(post, work);
                self.watch.blame(me, &error);
                return Err(error);
            }
            let flow = lock(&self.flow);
            if flow.places[number - flow.first].came.load(Relaxed) == self.ranks.len() {
                break;
            } // else one took its post back after it was looked at and before the last one came: its windows are its own
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
    /// Takes a post back; where all have come, it is done to its end instead.
    pub(super) fn withdraw(&self, post: Post, work: Work) {
        let flow = lock(&self.flow);
        let place = &flow.places[post.number - flow.first];
        if place.came.load(Relaxed) < self.ranks.len() {
            place.came.fetch_sub(1, Relaxed); // so all will never have come
            let withdrawn = &self.counts.withdrawn[post.from];
            if withdrawn.load(Relaxed) == 0 {
                withdrawn.store(post.number + 1, Release);
            }
            return;
        }
        drop(flow);
        self.complete(post, work);
    }
    /// Does what is left of a post that all have come to, and leaves it: who means something else, if anybody does, and
    /// when a slow link has carried it.
    fn complete(&self, post: Post, work: Work) -> (Option<(usize, String)>, Option<Instant>) {
        let flow = lock(&self.flow);
        let place = flow.places[post.number - flow.first].clone();
        drop(flow);
        // SAFETY: all have come, so posts are only read.
        let posts = unsafe { &*place.posts.get() };
        if posts.refused.is_empty() {
            place.complete(posts, self.ranks.len(), work);
        }
        let outcome = (posts.refused.get(post.from).cloned().flatten(), posts.until);
        drop(place);
        self.leave(post.number);
        outcome
    }
    /// A rank has no more to do with a number; after the last one its place is free.
    fn leave(&self, number: usize) {
        let n = self.ranks.len();
        let mut flow = lock(&self.flow);
        flow.places[number - flow.first].left.fetch_add(1, AcqRel);
        while flow.places.front().is_some_and(|place| place.left.load(Acquire) == n) {
            let mut place = flow.places.pop_front().expect("just checked");
            flow.first += 1;
            // Who has left has let go of it, or will in a moment.
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

impl Place {
    /// Does what is left of all shares, and waits for those that others do.
    fn complete(&self, posts: &Posts, n: usize, work: Work) {
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

/// Counts a share as done, however it ends.
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
    /// Notes who means something else than whom, if anybody does.
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
        let all: bool = (0..n).all(|rank| other(rank).is_none());
        if !all {
            self.refused = (0..n).map(other).collect();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
