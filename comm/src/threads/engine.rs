//! The collectives of one group of threads, on the peers' memory.
use super::messages::Messages;
use super::reduction::{reduce, share};
use super::rendezvous::{Rendezvous, Windows};
use super::slow::{after, collective_time, pause};
use super::watch::Watch;
use crate::call::{Call, Counts, Reduce};
use crate::engine::{Engine, Post, nth_of};
use crate::error::Result;
use crate::link::Link;
use crate::sync::{Instant, Mutex, lock};
use kernels::widest;
use std::collections::BTreeMap;
use std::ptr::{copy_nonoverlapping, from_ref, null_mut};
use std::sync::Arc;
use tensor::{Cpu, Scalar, View, ViewMut};

/// One group of threads.
pub(super) struct Threads {
    ranks: usize,
    rendezvous: Rendezvous,
    messages: Messages,
    parts: Mutex<BTreeMap<Vec<usize>, Arc<Threads>>>, // by their members' places along the axis
    members: Arc<[usize]>,                            // ranks of the world
    watch: Arc<Watch>,
    link: Option<Link>,
}

impl Threads {
    /// The group of these ranks of a world, over links of this kind.
    pub(super) fn new(members: Arc<[usize]>, watch: &Arc<Watch>, link: Option<Link>) -> Self {
        Self {
            ranks: members.len(),
            rendezvous: Rendezvous::new(members.clone(), watch.clone()),
            messages: Messages::new(members.clone(), watch.clone(), link),
            parts: Mutex::default(),
            members,
            watch: watch.clone(),
            link,
        }
    }
    /// All meet, `work` runs, all part; over a slow link that takes its time.
    #[inline]
    fn collective<S>(
        &self,
        rank: usize,
        window: *mut S,
        call: &Call,
        work: impl FnOnce(&Windows),
    ) -> Result<()> {
        let mut met = None;
        self.rendezvous.collective(rank, window, call, |windows| {
            met = self.link.map(|link| after(Instant::now(), collective_time(&link, call, self.ranks)));
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
}

/// The one list of counts of a call, if it has one.
fn one_list(call: &Call) -> Option<&Arc<[usize]>> {
    match &call.counts {
        Some(Counts::Of(counts)) => Some(counts),
        _ => None,
    }
}

impl<S: Scalar> Engine<Cpu<S>> for Threads {
    fn all_reduce(&self, rank: usize, data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let how = call.reduce.expect("a reduction");
        let range = share(rank, self.ranks, data.rows() * data.cols());
        self.collective(rank, data.ptr().raw(), call, |windows| {
            let all = (0..self.ranks).map(|peer| windows.of::<S>(peer));
            // SAFETY: all windows have the elements of `data`, as all calls are equal, and each is borrowed mutably by
            // its rank, so they are disjoint. Only this rank touches this range of them while it is inside.
            widest(
                #[inline(always)]
                || unsafe { reduce(&all, &all, range, how) },
            );
        })
    }
    fn all_gather(
        &self,
        rank: usize,
        mine: View<Cpu<S>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let (counts, out) = (one_list(call), out.flat());
        let (all, to) = (out.len(), out.as_mut_ptr());
        let block = |peer| self.block(counts, call, peer, all);
        assert!(mine.is_contiguous() && mine.rows() * mine.cols() == block(rank)[1]);
        self.collective(rank, mine.ptr().raw(), call, |windows| {
            for peer in 0..self.ranks {
                let [at, len] = block(peer);
                // SAFETY: a rank's window has its block's elements, as it saw to and all calls are equal; windows are
                // borrowed, and `out`, which has room for all blocks, is borrowed mutably, so it is other memory.
                unsafe { copy_nonoverlapping(windows.of(peer), to.add(at), len) }
            }
        })
    }
    fn all_gather_columns(
        &self,
        rank: usize,
        mine: View<Cpu<S>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let ([rows, cols], n) = ([mine.rows(), mine.cols()], out.cols());
        assert!(mine.is_contiguous() && out.rows() == rows && n <= cols * self.ranks);
        let to = out.flat().as_mut_ptr();
        self.collective(rank, mine.ptr().raw(), call, |windows| {
            for peer in 0..self.ranks {
                let (window, its) = (windows.of::<S>(peer), nth_of(peer, cols, n));
                for row in 0..rows {
                    // SAFETY: all windows have as many rows and columns, as all calls are equal; they are borrowed, and
                    // `out`, whose row has room for these columns, is borrowed mutably, so it is other memory.
                    unsafe {
                        copy_nonoverlapping(window.add(row * cols), to.add(row * n + its.start), its.len());
                    }
                }
            }
        })
    }
    fn reduce_scatter(
        &self,
        rank: usize,
        data: View<Cpu<S>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let (out, elements) = (out.flat(), data.rows() * data.cols());
        let [at, len] = self.block(one_list(call), call, rank, elements);
        assert!(data.is_contiguous() && len == out.len());
        self.collective(rank, data.ptr().raw(), call, |windows| {
            // SAFETY: all windows have the elements of `data`, as all calls are equal, this block among them; they are
            // borrowed, so nobody writes them, and `out` is borrowed mutably, so it is other memory.
            let blocks = (0..self.ranks).map(|peer| unsafe { windows.of::<S>(peer).add(at) });
            let target = std::iter::once(out.as_mut_ptr());
            // SAFETY: as above.
            widest(
                #[inline(always)]
                || unsafe { reduce(&blocks, &target, 0..len, Reduce::Sum) },
            );
        })
    }
    fn broadcast(&self, rank: usize, root: usize, mut data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let (len, window) = (data.rows() * data.cols(), data.flat().as_mut_ptr());
        self.collective(rank, window, call, |windows| {
            if rank != root {
                // SAFETY: both windows have `len` elements, as all calls are equal, and each is borrowed mutably by its
                // rank, so they are disjoint. Only this rank writes its own, and nobody writes the root's.
                unsafe { copy_nonoverlapping(windows.of(root), window, len) }
            }
        })
    }
    fn gather(
        &self,
        rank: usize,
        mine: View<Cpu<S>>,
        out: Option<ViewMut<Cpu<S>>>,
        call: &Call,
    ) -> Result<()> {
        let len = mine.rows() * mine.cols();
        assert!(mine.is_contiguous());
        self.collective(rank, mine.ptr().raw(), call, |windows| {
            let Some(mut out) = out else { return };
            for (peer, block) in out.flat().chunks_exact_mut(len.max(1)).enumerate() {
                // SAFETY: all windows have `len` elements, as all calls are equal; they are borrowed, and `out` is
                // borrowed mutably, so it is other memory.
                unsafe { copy_nonoverlapping(windows.of(peer), block.as_mut_ptr(), len) }
            }
        })
    }
    fn scatter(
        &self,
        rank: usize,
        root: usize,
        data: Option<View<Cpu<S>>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let out = out.flat();
        assert!(
            data.is_none_or(
                |data| data.is_contiguous() && data.rows() * data.cols() == self.ranks * out.len()
            )
        );
        let window = data.map_or(null_mut(), |data| data.ptr().raw());
        self.collective(rank, window, call, |windows| {
            // SAFETY: the root's window has `ranks` blocks of `out`'s length, as it saw to and all calls are equal; it is
            // borrowed, and `out` is borrowed mutably, so it is other memory.
            unsafe {
                let block = windows.of::<S>(root).add(rank * out.len());
                copy_nonoverlapping(block, out.as_mut_ptr(), out.len());
            }
        })
    }
    fn all_to_all(
        &self,
        rank: usize,
        data: View<Cpu<S>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let (elements, out) = (data.rows() * data.cols(), out.flat());
        assert!(data.is_contiguous());
        let (room, to) = (out.len(), out.as_mut_ptr());
        self.collective(rank, data.ptr().raw(), call, |windows| {
            let mut filled = 0;
            for peer in 0..self.ranks {
                let [at, len] = match windows.call(peer).counts.as_ref() {
                    Some(Counts::Between(give, _)) => self.block(Some(give), call, rank, 0),
                    _ => self.block(None, call, rank, elements),
                };
                assert!(len <= room - filled);
                // SAFETY: a peer's window has the blocks it gives, the one for this rank among them; it is borrowed, and
                // `out`, where it fits as was just seen, is borrowed mutably, so it is other memory.
                unsafe { copy_nonoverlapping(windows.of::<S>(peer).add(at), to.add(filled), len) }
                filled += len;
            }
        })
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        self.collective(rank, from_ref(&mine).cast_mut(), call, |windows| {
            // SAFETY: all windows are such slices, as all calls are equal, and are borrowed.
            all = (0..self.ranks).map(|peer| unsafe { *windows.of::<&[u8]>(peer) }.to_vec()).collect();
        })?;
        Ok(all)
    }
    fn barrier(&self, rank: usize, call: &Call) -> Result<()> {
        self.collective(rank, null_mut::<S>(), call, |_| ())
    }
    unsafe fn post_send(&self, rank: usize, to: usize, data: View<Cpu<S>>, call: &Call) -> Result<Post> {
        assert!(data.is_contiguous());
        // SAFETY: the caller's promise.
        unsafe { self.messages.post([rank, to], true, data.ptr().raw(), call) }
    }
    unsafe fn post_receive(
        &self,
        rank: usize,
        from: usize,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<Post> {
        // SAFETY: the caller's promise.
        unsafe { self.messages.post([from, rank], false, out.flat().as_mut_ptr(), call) }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        self.messages.finish(post, call)
    }
    fn withdraw(&self, post: Post) {
        self.messages.withdraw(post);
    }
    fn part(&self, ranks: &[usize]) -> Arc<dyn Engine<Cpu<S>>> {
        let members = ranks.iter().map(|&rank| self.members[rank]).collect();
        let new = || Arc::new(Threads::new(members, &self.watch, self.link));
        lock(&self.parts).entry(ranks.to_vec()).or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod blocks;
#[cfg(test)]
mod tests;
