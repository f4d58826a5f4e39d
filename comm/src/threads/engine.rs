//! The collectives of one group of threads, on the peers' memory.
use super::messages::Messages;
use super::reduction::{reduce, share};
use super::rendezvous::Rendezvous;
use super::watch::Watch;
use crate::call::{Call, Reduce};
use crate::engine::Engine;
use crate::error::Result;
use kernels::widest;
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use tensor::{Cpu, Scalar, View, ViewMut};

/// One group of threads.
pub(super) struct Threads {
    ranks: usize,
    rendezvous: Rendezvous,
    messages: Messages,
}

impl Threads {
    /// The group of these ranks of a world.
    pub(super) fn new(ranks: &Arc<[usize]>, watch: &Arc<Watch>) -> Self {
        Self {
            ranks: ranks.len(),
            rendezvous: Rendezvous::new(ranks.clone(), watch.clone()),
            messages: Messages::new(ranks.clone(), watch.clone()),
        }
    }
}

impl<S: Scalar> Engine<Cpu<S>> for Threads {
    fn all_reduce(&self, rank: usize, data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let how = call.reduce.expect("a reduction");
        let range = share(rank, self.ranks, data.rows() * data.cols());
        self.rendezvous.collective(rank, data.ptr().raw(), call, |windows| {
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
        let (len, out) = (mine.rows() * mine.cols(), out.flat());
        assert!(mine.is_contiguous() && out.len() == len * self.ranks);
        self.rendezvous.collective(rank, mine.ptr().raw(), call, |windows| {
            for peer in 0..self.ranks {
                // SAFETY: all windows have `len` elements, as all calls are equal; they are borrowed, and `out`, which
                // has room for all, is borrowed mutably, so it is other memory.
                unsafe { copy_nonoverlapping(windows.of(peer), out.as_mut_ptr().add(peer * len), len) }
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
        let out = out.flat();
        assert!(data.is_contiguous() && data.rows() * data.cols() == out.len() * self.ranks);
        self.rendezvous.collective(rank, data.ptr().raw(), call, |windows| {
            let block = rank * out.len();
            // SAFETY: all windows have `ranks` blocks of `out`'s length, as all calls are equal; they are borrowed, so
            // nobody writes them, and `out` is borrowed mutably, so it is other memory.
            let blocks = (0..self.ranks).map(|peer| unsafe { windows.of::<S>(peer).add(block) });
            let target = std::iter::once(out.as_mut_ptr());
            // SAFETY: as above.
            widest(
                #[inline(always)]
                || unsafe { reduce(&blocks, &target, 0..out.len(), Reduce::Sum) },
            );
        })
    }
    fn broadcast(&self, rank: usize, root: usize, mut data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let (len, window) = (data.rows() * data.cols(), data.flat().as_mut_ptr());
        self.rendezvous.collective(rank, window, call, |windows| {
            if rank != root {
                // SAFETY: both windows have `len` elements, as all calls are equal, and each is borrowed mutably by its
                // rank, so they are disjoint. Only this rank writes its own, and nobody writes the root's.
                unsafe { copy_nonoverlapping(windows.of(root), window, len) }
            }
        })
    }
    fn barrier(&self, rank: usize, call: &Call) -> Result<()> {
        self.rendezvous.collective(rank, std::ptr::null_mut::<S>(), call, |_| ())
    }
    fn send(&self, rank: usize, to: usize, data: View<Cpu<S>>, call: &Call) -> Result<()> {
        self.messages.send(rank, to, data, call)
    }
    fn receive(&self, rank: usize, from: usize, out: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        self.messages.receive(rank, from, out, call)
    }
}
