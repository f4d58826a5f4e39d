//! Places with memory: one rank's share of the host, of a GPU, or of nothing, where only sizes count.
use crate::count::caught;
use crate::{Category, Meter, Pool, Profile};
use bytemuck::AnyBitPattern;
use std::panic::resume_unwind;
use std::sync::Arc;

/// A place with memory, of one rank. It knows bytes and addresses, and no numbers: see [`Device`](crate::Device). Cloning
/// is cheap; clones share memory pool, meter and profile.
pub trait Place: Clone + Send + Sync + 'static {
    /// An address; `()` where there is no memory.
    type Ptr: Copy + Send + Sync;
    /// A piece of memory.
    type Buffer: Send + Sync;

    /// Whether a fresh piece costs so much that pieces at rest are kept until the system has no more.
    const SLOW_TO_ALLOCATE: bool = false;

    /// A fresh piece of so many bytes, all of them zero; none if there is no more memory.
    fn alloc(&self, bytes: usize) -> Option<Self::Buffer>;
    /// Where a piece begins.
    fn ptr(buffer: &Self::Buffer) -> Self::Ptr;
    /// An address `bytes` further on.
    fn offset(ptr: Self::Ptr, bytes: usize) -> Self::Ptr;
    /// Puts `len` numbers where kernels can read them, from the beginning of the piece on. `numbers` sets some at a time that
    /// follow each other, the first of which is number so many; where there is no memory, none.
    fn put<S: AnyBitPattern>(buffer: &mut Self::Buffer, len: usize, numbers: impl FnMut(usize, &mut [S]));
    /// Appends the first `len` numbers of a piece to `numbers`; `false` where there are none.
    fn get<S: AnyBitPattern>(buffer: &Self::Buffer, len: usize, numbers: &mut Vec<S>) -> bool;
    /// What is not in use.
    fn pool(&self) -> &Pool<Self>;
    /// What this rank holds and computes.
    fn meter(&self) -> &Meter;
    /// Waits until all that was asked of it is done: where that may take longer than asking.
    fn settle(&self) {}
    /// Where its time goes; none where nothing is computed.
    fn profile(&self) -> Option<&Profile> {
        None
    }
}

/// Memory that could not be had. Whoever asked for it unwinds with this, up to [`Fault::caught`] or the rank's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} more bytes of {} do not fit beside the {held} held: {}", category.name(), Self::bound(*limit))]
pub struct Fault {
    /// What they were asked for.
    pub category: Category,
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes that the rank held in all categories.
    pub held: usize,
    /// Bytes that it may hold ([`Meter::limit`]); none if the system had no more.
    pub limit: Option<usize>,
}

impl Fault {
    fn bound(limit: Option<usize>) -> String {
        limit.map_or_else(|| "the system has no more".into(), |limit| format!("the limit is {limit}"))
    }
    /// Unwinds, without a word on standard error.
    pub(crate) fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }
    /// What `work` gives, unless it asks for memory that cannot be had.
    ///
    /// # Errors
    /// The fault.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Self> {
        caught(work)
    }
}

/// A place that has failed: what a driver says of it. Whoever computes there unwinds with this, up to the rank's end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlaceError(pub String);

impl PlaceError {
    /// What `work` gives, unless the place fails.
    ///
    /// # Errors
    /// The failure.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Self> {
        caught(work)
    }
    /// Unwinds, without a word on standard error.
    pub fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }
}

/// No place at all: memory is metered, and there is none.
#[derive(Clone, Default)]
pub struct Nowhere(Arc<(Meter, Pool<Nowhere>, Option<Scratch>)>);

/// Numbers of scratch memory that the kernels of a device ask for.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// Those of a factor `[k, n]` that is laid out.
    pub packed: fn(usize, usize) -> usize,
    /// Those of attention, wide ones: query heads, KV heads, features of each, and keys of the longest span.
    pub attention: fn([usize; 3], usize) -> usize,
}

impl Nowhere {
    /// A rank's share of its own, in place of one of a device with such kernels.
    pub fn with(scratch: Scratch) -> Self {
        Self(Arc::new((Meter::default(), Pool::default(), Some(scratch))))
    }
    /// Scratch of the device in whose place it is.
    ///
    /// # Panics
    /// If it is in no device's place.
    pub fn scratch(&self) -> Scratch {
        self.0.2.expect("a ghost whose kernels ask for scratch is one of a device")
    }
}

impl Place for Nowhere {
    type Ptr = ();
    type Buffer = ();
    fn alloc(&self, _: usize) -> Option<()> {
        Some(())
    }
    fn ptr((): &()) {}
    fn offset((): (), _: usize) {}
    fn put<S: AnyBitPattern>((): &mut (), _: usize, _: impl FnMut(usize, &mut [S])) {}
    fn get<S: AnyBitPattern>((): &(), _: usize, _: &mut Vec<S>) -> bool {
        false
    }
    fn pool(&self) -> &Pool<Self> {
        &self.0.1
    }
    fn meter(&self) -> &Meter {
        &self.0.0
    }
}
