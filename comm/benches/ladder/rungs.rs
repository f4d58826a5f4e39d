//! Rungs written by hand: each removes a cost of the one before it.
use comm::CommError;
use kernels::widest;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};

/// All-reduce of one group of threads: every rank's `x` becomes the sum over all ranks. All ranks call it
/// with the same number of elements.
pub(crate) trait AllReduce: Sync {
    fn sum(&self, rank: usize, x: &mut [f32]) -> Result<(), CommError>;
}

/// Floats per cache line.
const LINE: usize = 16;
/// Floats that are summed in registers before any is written.
const BLOCK: usize = 128;

/// One total under a lock; every rank adds to it and copies it.
pub(crate) struct Locked {
    total: Mutex<Vec<f32>>,
    barrier: Barrier,
}

impl Locked {
    pub(crate) fn new(ranks: usize, len: usize) -> Self {
        Self { total: Mutex::new(vec![0.0; len]), barrier: Barrier::new(ranks) }
    }
}

impl AllReduce for Locked {
    fn sum(&self, rank: usize, x: &mut [f32]) -> Result<(), CommError> {
        let total = || self.total.lock().unwrap_or_else(PoisonError::into_inner);
        total().iter_mut().zip(&*x).for_each(|(total, x)| *total += x);
        self.barrier.wait();
        x.copy_from_slice(&total());
        self.barrier.wait();
        if rank == 0 {
            total().fill(0.0);
        }
        self.barrier.wait();
        Ok(())
    }
}

/// Barrier that also publishes the ranks' memory to each other.
pub(crate) trait Meet: Sync {
    /// Returns when all ranks have entered.
    fn meet(&self, rank: usize);
}

impl Meet for Barrier {
    fn meet(&self, _: usize) {
        self.wait();
    }
}

/// Number of times each rank has entered. Each counter has cache lines of its own, so that a write to one
/// does not slow reads of another.
pub(crate) struct Epochs {
    of: Vec<Epoch>,
    patience: usize, // polls before the first yield
}
#[derive(Default)]
#[repr(align(128))]
struct Epoch(AtomicUsize);

impl Epochs {
    /// Makes the counters of `ranks` ranks. A rank spins only briefly if ranks share cores: a long spin would
    /// keep out the rank that it waits for.
    pub(crate) fn new(ranks: usize) -> Self {
        let enough = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= ranks);
        Self { of: (0..ranks).map(|_| Epoch::default()).collect(), patience: if enough { 4000 } else { 20 } }
    }
}

impl Meet for Epochs {
    /// Waits by polling; never sleeps.
    fn meet(&self, rank: usize) {
        let epoch = self.of[rank].0.fetch_add(1, Ordering::Release) + 1;
        for other in &self.of {
            let mut looks = 0;
            while other.0.load(Ordering::Acquire) < epoch {
                looks += 1;
                if looks < self.patience { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }
}

/// Division of the sum among the ranks, once all have published their memory.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Rank 0 adds up all elements and writes the sums to all ranks.
    OneAdds,
    /// Each rank adds up its part in place, then reads the others' parts: a reduce-scatter and an all-gather.
    ShareThenRead,
    /// Each rank adds up its part and writes it to all ranks.
    ShareToAll,
    /// Same as `ShareToAll`, block by block in registers, with the widest vectors.
    ShareInBlocks,
}

/// All-reduce in which ranks access each other's memory.
pub(crate) struct Shown<M> {
    windows: Vec<AtomicPtr<f32>>,
    place: M,
    work: Work,
}

impl<M: Meet> Shown<M> {
    pub(crate) fn new(ranks: usize, place: M, work: Work) -> Self {
        Self { windows: (0..ranks).map(|_| AtomicPtr::default()).collect(), place, work }
    }
    fn share(&self, rank: usize, len: usize) -> Range<usize> {
        let each = len.div_ceil(self.windows.len()).next_multiple_of(LINE);
        (rank * each).min(len)..((rank + 1) * each).min(len)
    }
    /// Returns a range of a rank's window.
    ///
    /// # Safety
    /// All ranks have met since this rank published a window that contains the range. Until all meet again,
    /// no other rank writes the range.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // the window is another rank's
    unsafe fn of(&self, rank: usize, range: Range<usize>) -> &mut [f32] {
        let window = self.windows[rank].load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(window.add(range.start), range.len()) }
    }
    /// Adds the other ranks' elements of the range to those of rank `to`; writes the sums to all ranks if
    /// `to_all` is set.
    ///
    /// # Safety
    /// Same as [`Shown::of`], for the range of all windows.
    #[inline(always)]
    unsafe fn add(&self, to: usize, range: Range<usize>, to_all: bool) {
        let others = (0..self.windows.len()).filter(|&rank| rank != to);
        // SAFETY: the caller's promise; windows do not overlap.
        unsafe {
            let sum = self.of(to, range.clone());
            for rank in others.clone() {
                sum.iter_mut().zip(&*self.of(rank, range.clone())).for_each(|(sum, x)| *sum += x);
            }
            for rank in others.filter(|_| to_all) {
                self.of(rank, range.clone()).copy_from_slice(sum);
            }
        }
    }
    /// Sums one block of `LEN` elements over all ranks and writes it to all ranks: each element is read once
    /// and written once.
    ///
    /// # Safety
    /// Same as [`Shown::of`], for `LEN` elements from `at` of all windows.
    #[inline(always)]
    unsafe fn add_block<const LEN: usize>(&self, at: usize) {
        let mut sum = [0.0; LEN];
        for rank in 0..self.windows.len() {
            // SAFETY: the caller's promise.
            let x = unsafe { self.of(rank, at..at + LEN) };
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += *x);
        }
        for rank in 0..self.windows.len() {
            // SAFETY: the caller's promise.
            unsafe { self.of(rank, at..at + LEN) }.copy_from_slice(&sum);
        }
    }
}

impl<M: Meet> AllReduce for Shown<M> {
    fn sum(&self, rank: usize, x: &mut [f32]) -> Result<(), CommError> {
        let (len, ranks) = (x.len(), self.windows.len());
        let mine = self.share(rank, len);
        self.windows[rank].store(x.as_mut_ptr(), Ordering::Relaxed); // the meeting publishes it
        self.place.meet(rank);
        // SAFETY: all ranks have met, and all windows have `len` elements. Until all meet again, only one
        // rank writes each part.
        unsafe {
            match self.work {
                Work::OneAdds if rank == 0 => self.add(0, 0..len, true),
                Work::OneAdds => {}
                Work::ShareThenRead => self.add(rank, mine, false),
                Work::ShareToAll => self.add(rank, mine, true),
                Work::ShareInBlocks => widest(
                    #[inline(always)]
                    || {
                        let whole = mine.start + mine.len() / BLOCK * BLOCK;
                        (mine.start..whole).step_by(BLOCK).for_each(|at| self.add_block::<BLOCK>(at));
                        (whole..mine.end).for_each(|at| self.add_block::<1>(at));
                    },
                ),
            }
        }
        self.place.meet(rank);
        if matches!(self.work, Work::ShareThenRead) {
            for peer in (0..ranks).filter(|&peer| peer != rank) {
                let share = self.share(peer, len);
                // SAFETY: peers no longer write their parts, and read a part only in its own rank's window.
                x[share.clone()].copy_from_slice(unsafe { self.of(peer, share) });
            }
            self.place.meet(rank);
        }
        Ok(())
    }
}
