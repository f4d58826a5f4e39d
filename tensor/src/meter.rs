//! Meter of the memory that a rank holds and of the work that it does. One writer (the rank's thread), any
//! number of readers.
use crate::count::{self, caught};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

listed! {
    /// Use of memory.
    Category {
        /// Parameters.
        Weights = "weights",
        /// Gradients of parameters.
        Gradients = "gradients",
        /// The optimizer's state.
        Optimizer = "optimizer",
        /// Values that layers compute and keep.
        Activations = "activations",
        /// Keys and values of earlier tokens.
        KvCache = "kv-cache",
        /// Scratch, tables, token ids, gathered buckets.
        Buffers = "buffers",
        /// Copies of offloaded state: in use, and on their way.
        InFlight = "in-flight",
        /// Copies of state that are being saved while steps go on.
        Snapshot = "snapshot",
    }
}

/// Phase of a run, with peaks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Phase {
    /// Building the model and reading its weights.
    Load,
    /// Forward passes that keep no activations.
    Inference,
    /// Training steps.
    Step,
}
const CATEGORIES: usize = Category::ALL.len();
const PHASES: usize = 3;

/// Largest bytes held at once in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Peak of each category, each at its own moment; see [`Category::ALL`].
    pub category: [usize; CATEGORIES],
    /// Peak of all categories together.
    pub total: usize,
}

/// Bytes now and at peak, by category and phase; floating point operations; bytes read by the host's program.
#[derive(Debug, Default)]
pub struct Meter {
    phase: AtomicUsize,
    now: [AtomicUsize; CATEGORIES + 1], // the last is the sum
    peak: [[AtomicUsize; CATEGORIES + 1]; PHASES],
    flops: AtomicU64,
    brought: AtomicU64,
    reserved: AtomicUsize,
    away: [AtomicUsize; 2], // now, and at most
    moved: AtomicU64,
    spared: AtomicUsize, // usize::MAX minus the limit of the sum: 0 means no limit
}

impl Meter {
    /// Begins a phase: its peaks start from the bytes held now.
    pub fn begin(&self, phase: Phase) {
        self.phase.store(phase as usize, Relaxed);
        for (now, peak) in self.now.iter().zip(&self.peak[phase as usize]) {
            peak.fetch_max(now.load(Relaxed), Relaxed);
        }
    }
    /// Restarts the phase: its peaks start from the bytes held now. Returns the phase's peak so far and the
    /// bytes held now, both over all categories.
    pub fn restart_phase(&self) -> [usize; 2] {
        let peak = &self.peak[self.phase.load(Relaxed)];
        let before = peak[CATEGORIES].load(Relaxed);
        for (now, peak) in self.now.iter().zip(peak) {
            peak.store(now.load(Relaxed), Relaxed);
        }
        [before, self.now[CATEGORIES].load(Relaxed)]
    }
    /// Limits the bytes that the rank may hold from now on, over all categories.
    pub fn limit(&self, bytes: usize) {
        self.spared.store(usize::MAX - bytes, Relaxed);
    }
    /// Counts bytes as held. Returns the bytes held before, over all categories.
    ///
    /// # Panics
    /// With [`OutOfMemory`], if these bytes exceed the limit.
    pub(crate) fn hold(&self, category: Category, bytes: usize) -> usize {
        let (held, limit) = (self.now[CATEGORIES].load(Relaxed), usize::MAX - self.spared.load(Relaxed));
        let level = count::sum("the bytes of a rank", [held, bytes]);
        if level > limit {
            OutOfMemory { category, asked: bytes, held, limit: Some(limit) }.unwind();
        }
        let peak = &self.peak[self.phase.load(Relaxed)];
        for i in [category as usize, CATEGORIES] {
            let level = self.now[i].fetch_add(bytes, Relaxed) + bytes;
            peak[i].fetch_max(level, Relaxed);
        }
        held
    }
    pub(crate) fn release(&self, category: Category, bytes: usize) {
        for i in [category as usize, CATEGORIES] {
            self.now[i].fetch_sub(bytes, Relaxed);
        }
    }
    pub(crate) fn reserve(&self, bytes: usize) {
        self.reserved.fetch_add(bytes, Relaxed);
    }
    pub(crate) fn unreserve(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Relaxed);
    }
    /// Counts floating point operations (a multiply-add is two): the product of these sizes. Callers of
    /// kernels count, not kernels.
    pub fn work(&self, sizes: &[usize]) {
        const WHAT: &str = "the operations of a rank";
        let more = count::product(WHAT, sizes);
        count::sum(WHAT, [self.flops.fetch_add(more as u64, Relaxed) as usize, more]);
    }
    /// Counts bytes that are read from the device's memory.
    pub(crate) fn came(&self, bytes: usize) {
        self.brought.fetch_add(bytes as u64, Relaxed);
    }
    pub(crate) fn keep_away(&self, bytes: usize) {
        let level = self.away[0].fetch_add(bytes, Relaxed) + bytes;
        self.away[1].fetch_max(level, Relaxed);
    }
    pub(crate) fn forget_away(&self, bytes: usize) {
        self.away[0].fetch_sub(bytes, Relaxed);
    }
    pub(crate) fn moves(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Relaxed);
    }
    /// Largest bytes of the rank's state kept off the device at once; no category counts them.
    pub fn away(&self) -> usize {
        self.away[1].load(Relaxed)
    }
    /// Bytes moved so far between the device and the state that is kept off it, in both directions.
    pub fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }
    /// Bytes of a category held now.
    pub fn now(&self, category: Category) -> usize {
        self.now[category as usize].load(Relaxed)
    }
    /// Peaks of one phase; zero if it never began.
    pub fn peaks(&self, phase: Phase) -> Peaks {
        Self::peaks_in(&self.peak[phase as usize..][..1])
    }
    /// Largest peaks over all phases, by category and in total.
    pub fn peaks_of_all(&self) -> Peaks {
        Self::peaks_in(&self.peak)
    }
    fn peaks_in(phases: &[[AtomicUsize; CATEGORIES + 1]]) -> Peaks {
        let highest = |i: usize| phases.iter().map(|peak| peak[i].load(Relaxed)).max().unwrap_or_default();
        Peaks { category: std::array::from_fn(highest), total: highest(CATEGORIES) }
    }
    /// Operations counted so far: products and attention; work that is linear in the activations is not
    /// counted.
    pub fn flops(&self) -> u64 {
        self.flops.load(Relaxed)
    }
    /// Bytes read from the device's memory so far: with an accelerator, the copies to the host.
    pub fn brought(&self) -> u64 {
        self.brought.load(Relaxed)
    }
    /// Bytes that the device took from the system; its pool keeps them.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Relaxed)
    }
}

/// Memory that could not be allocated. The code that requests it unwinds with this value, up to
/// [`OutOfMemory::caught`] or to the end of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} more bytes of {} do not fit beside the {held} held: {}", category.name(), Self::bound(*limit))]
pub struct OutOfMemory {
    /// Category of the request.
    pub category: Category,
    /// Bytes requested.
    pub asked: usize,
    /// Bytes that the rank held in all categories.
    pub held: usize,
    /// Limit of the rank in bytes ([`Meter::limit`]); `None` if the system had no more.
    pub limit: Option<usize>,
}

impl OutOfMemory {
    fn bound(limit: Option<usize>) -> String {
        limit.map_or_else(|| "the system has no more".into(), |limit| format!("the limit is {limit}"))
    }
    /// Unwinds, without a message on standard error.
    pub(crate) fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }
    /// Runs `work` and returns its result, unless it requests memory that cannot be allocated.
    ///
    /// # Errors
    /// The failed request.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Self> {
        caught(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a peak that forgets what a phase began with, a release from the wrong category.
    #[test]
    fn phases_have_their_own_peaks() {
        let m = Meter::default();
        m.hold(Category::Weights, 10);
        m.hold(Category::Buffers, 30);
        m.release(Category::Buffers, 30);
        m.hold(Category::Buffers, 5);
        m.release(Category::Buffers, 5);
        m.begin(Phase::Step);
        m.hold(Category::Activations, 5);
        let (load, step) = (m.peaks(Phase::Load), m.peaks(Phase::Step));
        assert_eq!((load.category, load.total), ([10, 0, 0, 0, 0, 30, 0, 0], 40));
        assert_eq!((step.category, step.total), ([10, 0, 0, 5, 0, 0, 0, 0], 15));
        assert_eq!(m.peaks_of_all(), Peaks { category: [10, 0, 0, 5, 0, 30, 0, 0], total: 40 });
        assert_eq!(m.peaks(Phase::Inference), Peaks::default());
        assert_eq!((m.now(Category::Weights), m.now(Category::Buffers)), (10, 0));
        m.hold(Category::Activations, 4);
        m.release(Category::Activations, 9);
        assert_eq!((m.restart_phase(), m.restart_phase()), ([19, 10], [10, 10]));
        assert_eq!(
            (m.peaks(Phase::Step).category, m.peaks(Phase::Load).total),
            ([10, 0, 0, 0, 0, 0, 0, 0], 40)
        );
    }
}
