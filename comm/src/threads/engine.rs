//! The collectives of one group of threads, on the peers' memory.
use super::messages::Messages;
use super::reduction::{Into, share};
use super::rendezvous::{AllWindows, Rendezvous};
use super::slow::{Slow, pause};
use super::started::Started;
use super::watch::Watch;
use crate::engine::nth_of;
use crate::shared::{Reduction, Shared};
use crate::{Call, Counts, Engine, Op, Post, Result, Windows};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

/// One group of threads.
pub(super) struct Threads<P> {
    place: P, // what copies and adds in the ranks' memory
    ranks: usize,
    rendezvous: Rendezvous,
    messages: Messages,
    started: Started,
    members: Arc<[usize]>, // ranks of the world
    watch: Arc<Watch>,
    slow: Option<Arc<Slow>>,
}

impl<P: Shared> Threads<P> {
    /// The group of these ranks of a world, over links of this kind.
    pub(super) fn new(place: P, members: Arc<[usize]>, watch: &Arc<Watch>, slow: Option<Arc<Slow>>) -> Self {
        Self {
            place,
            ranks: members.len(),
            rendezvous: Rendezvous::new(members.clone(), watch.clone()),
            messages: Messages::new(members.clone(), watch.clone(), slow.clone()),
            started: Started::new(members.clone(), watch.clone(), slow.clone()),
            members,
            watch: watch.clone(),
            slow,
        }
    }
    /// All meet, `work` runs, all part; over a slow link that takes its time.
    #[inline]
    fn collective(
        &self,
        rank: usize,
        window: *mut (),
        call: &Call,
        work: impl FnOnce(&AllWindows),
    ) -> Result<()> {
        let mut met = None;
        self.rendezvous.collective(rank, window, call, |windows| {
            met = self.slow.as_ref().map(|slow| slow.met(call));
            work(windows);
        })?;
        if let Some(until) = met {
            pause(&self.watch, self.members[rank], until);
        }
        Ok(())
    }
    /// Where a rank's block begins and how long it is, in elements: by these counts of rows, or an equal part of all
    /// `elements`.
    fn block(&self, counts: Option<&Arc<[usize]>>, call: &Call, rank: usize, elements: usize) -> [usize; 2] {
        match counts {
            None => [rank * (elements / self.ranks), elements / self.ranks],
            Some(counts) => [counts[..rank].iter().sum::<usize>() * call.cols, counts[rank] * call.cols],
        }
    }
    /// What is done for one rank of a started call when all have come.
    fn share(&self) -> impl Fn(usize, *mut (), &AllWindows, &Call) {
        // SAFETY: all calls are equal, as was checked when the last rank came; windows are as those who posted them promised, and
        // are left alone by all until every share is done.
        |rank, to, windows, call| unsafe { self.work(rank, to, windows, call) }
    }
    /// What a rank does in a call when all have come: it reads the peers' windows, and writes to `to`, or in place.
    ///
    /// # Safety
    /// All calls are equal; each rank's window holds the elements that it gives, and `to` has room for those that this one
    /// takes. Windows are borrowed, and what is taken to is borrowed mutably: so it is other memory than any window but
    /// this rank's own, whose block it is at the same place, or which is its block there.
    unsafe fn work(&self, rank: usize, to: *mut (), windows: &AllWindows, call: &Call) {
        let (size, counts) = (call.elem.size, one_list(call));
        let copy = |peer: usize, from: usize, at: usize, len: usize| {
            let (window, to) = (windows.of::<u8>(peer), to.cast::<u8>());
            // SAFETY: the elements that are named below are inside the windows, as the caller promises.
            let (from, to) = unsafe { (window.add(from * size), to.add(at * size)) };
            if from != to {
                // SAFETY: as above; what is not this rank's own block in place is other memory.
                unsafe { self.place.copy(from, to, len * size) }
            }
        };
        let join = |into, range| {
            let reduction =
                Reduction { windows, into, range, how: call.reduce.expect("a reduction"), elem: call.elem };
            // SAFETY: only this rank touches this range of the windows while it is inside, or only it writes.
            unsafe { self.place.reduce(&reduction) }
        };
        match (call.op, &call.counts) {
            (Op::AllReduce, _) => join(Into::All, share(rank, self.ranks, call.elements())),
            (Op::ReduceScatter, _) => {
                let [at, len] = self.block(counts, call, rank, call.elements());
                join(Into::Place(to), at..at + len);
            }
            (Op::AllGather, Some(Counts::Columns(n))) => {
                for peer in 0..self.ranks {
                    let its = nth_of(peer, call.cols, *n);
                    for row in 0..call.rows {
                        copy(peer, row * call.cols, row * n + its.start, its.len());
                    }
                }
            }
            (Op::AllGather, _) => {
                for peer in 0..self.ranks {
                    let [at, len] = self.block(counts, call, peer, call.takes(self.ranks, rank));
                    copy(peer, 0, at, len);
                }
            }
            (Op::Broadcast, _) if rank != call.root => copy(call.root, 0, 0, call.elements()),
            (Op::Gather, _) if rank == call.root => {
                for peer in 0..self.ranks {
                    copy(peer, 0, peer * call.elements(), call.elements());
                }
            }
            (Op::Scatter, _) => copy(call.root, rank * call.elements(), 0, call.elements()),
            (Op::AllToAll, _) => {
                let mut filled = 0;
                for peer in 0..self.ranks {
                    let [at, len] = match &windows.call(peer).counts {
                        Some(Counts::Between(give, _)) => self.block(Some(give), call, rank, 0),
                        _ => self.block(None, call, rank, call.elements()),
                    };
                    assert!(len <= call.takes(self.ranks, rank) - filled);
                    copy(peer, at, filled, len);
                    filled += len;
                }
            }
            (Op::Broadcast | Op::Gather | Op::Barrier | Op::Send | Op::Receive, _) => {}
        }
    }
}

/// The one list of counts of a call, if it has one.
fn one_list(call: &Call) -> Option<&Arc<[usize]>> {
    match &call.counts {
        Some(Counts::Of(counts)) => Some(counts),
        _ => None,
    }
}

impl<P: Shared> Engine<P> for Threads<P> {
    unsafe fn now(&self, rank: usize, windows: Windows<P>, call: &Call) -> Result<()> {
        let [give, to] = [windows.give, windows.take].map(|window| window.map_or(null_mut(), P::raw));
        // SAFETY: the caller's promise, of every rank: those who mean something else do not get this far.
        self.collective(rank, give, call, |windows| unsafe { self.work(rank, to, windows, call) })
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        self.collective(rank, from_ref(&mine).cast_mut().cast(), call, |windows| {
            // SAFETY: all windows are such slices, as all calls are equal, and are borrowed.
            all = (0..self.ranks).map(|peer| unsafe { *windows.of::<&[u8]>(peer) }.to_vec()).collect();
        })?;
        Ok(all)
    }
    unsafe fn start(&self, rank: usize, calls: &mut dyn Iterator<Item = (Windows<P>, Call)>) -> Result<Post> {
        let raw = |window: Option<P::Ptr>| window.map_or(null_mut(), P::raw);
        let calls = calls.map(|(windows, call)| ([raw(windows.give), raw(windows.take)], call));
        // SAFETY: the caller's promise.
        unsafe { self.started.post(rank, calls) }
    }
    unsafe fn post(&self, rank: usize, window: P::Ptr, call: &Call) -> Result<Post> {
        let sends = call.op == Op::Send;
        let way = if sends { [rank, call.root] } else { [call.root, rank] };
        let bytes = call.elements() * call.elem.size;
        // SAFETY: the caller's promise, of both sides.
        let copy = |from, to| unsafe { self.place.copy(from, to, bytes) };
        // SAFETY: the caller's promise.
        unsafe { self.messages.post(way, sends, P::raw(window).cast::<u8>(), call, copy) }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        if post.is_started() {
            self.started.finish(post, call, &self.share())
        } else {
            self.messages.finish(post, call)
        }
    }
    fn withdraw(&self, post: Post) {
        if post.is_started() {
            self.started.withdraw(post, &self.share());
        } else {
            self.messages.withdraw(post);
        }
    }
}

#[cfg(test)]
mod tests;
