//! Places with memory: one rank's part of the host or of a GPU, or the meta device, on which only sizes
//! count.
pub(crate) mod pool;

use crate::{Clock, Meter, Pool, Profile};
use bytemuck::AnyBitPattern;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A place with memory, of one rank. A place deals in bytes and addresses and has no dtype: see
/// [`Device`](crate::Device). Cloning is cheap; clones share memory pool, meter and profile.
pub trait Place: Clone + Send + Sync + 'static {
    /// Address; `()` on the meta device.
    type Ptr: Copy + Send + Sync;
    /// Piece of memory.
    type Buffer: Send + Sync;
    /// Memory of the host that the device copies from and to directly.
    type Pinned: Send + 'static;

    /// True if allocation is so slow that the pool keeps free pieces until the system has no more memory.
    const SLOW_TO_ALLOCATE: bool = false;
    /// True if memory holds values.
    const HOLDS: bool = true;

    /// Allocates `bytes` bytes, all of them zero; `None` if there is no more memory.
    fn alloc(&self, bytes: usize) -> Option<Self::Buffer>;
    /// Address of a piece's first byte.
    fn ptr(buffer: &Self::Buffer) -> Self::Ptr;
    /// Address `bytes` bytes after `ptr`.
    fn offset(ptr: Self::Ptr, bytes: usize) -> Self::Ptr;
    /// Writes `len` elements to the start of a piece, where kernels can read them. `numbers` fills
    /// consecutive parts; its first argument is the index of the part's first element. On the meta device it
    /// is not called.
    fn put<S: AnyBitPattern>(buffer: &mut Self::Buffer, len: usize, numbers: impl FnMut(usize, &mut [S]));
    /// Appends the first `len` elements of a piece to `numbers`; returns `false` on the meta device.
    fn get<S: AnyBitPattern>(buffer: &Self::Buffer, len: usize, numbers: &mut Vec<S>) -> bool;
    /// Borrows the first `len` elements of a piece; `None` where the host's code cannot read it.
    fn on_host<S: AnyBitPattern>(_: &Self::Buffer, _: usize) -> Option<&[S]> {
        None
    }
    /// Lets `read` see the first `bytes` bytes of a piece, in order, some at a time. On the meta device it is
    /// not called.
    ///
    /// # Errors
    /// The first error of `read`.
    fn bytes(
        buffer: &Self::Buffer,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut contents = Vec::new();
        if Self::get::<u8>(buffer, bytes, &mut contents) { read(&contents) } else { Ok(()) }
    }
    /// Allocates memory of the host that the device copies from and to directly; `None` if there is no more.
    fn pin(&self, bytes: usize) -> Option<Self::Pinned>;
    /// Copies the first bytes of a piece to pinned memory, after all work submitted before.
    fn copy_out(from: &Self::Buffer, to: &mut Self::Pinned, bytes: usize);
    /// Copies pinned memory to the first bytes of a piece, after all work submitted before.
    fn copy_in(from: &Self::Pinned, to: &mut Self::Buffer, bytes: usize);
    /// Pool of free memory.
    fn pool(&self) -> &Pool<Self>;
    /// Meter of the memory that this rank holds and of the work that it does.
    fn meter(&self) -> &Meter;
    /// Waits until all submitted work is done, on places that run it asynchronously.
    fn settle(&self) {}
    /// Profile of this rank's time; `None` on places that compute nothing.
    fn profile(&self) -> Option<&Profile> {
        None
    }
    /// Clock of the work that would be done, on a place that computes nothing and has one.
    fn clock(&self) -> Option<&dyn Clock> {
        None
    }
}

/// The meta device: memory is metered, but not allocated.
#[derive(Clone, Default)]
pub struct MetaPlace(Arc<MetaRank>);

/// State that the clones of a meta device share.
#[derive(Default)]
struct MetaRank {
    meter: Meter,
    pool: Pool<MetaPlace>,
    scratch: Option<Scratch>,
    clock: Option<Arc<dyn Clock>>,
    counted: AtomicU64, // operations of kernels that the clock has counted
}

/// Sizes of scratch memory that the kernels of a device need, in elements, and sizes that they take.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// Elements of a packed factor `[k, n]`.
    pub packed: fn(usize, usize) -> usize,
    /// Wide elements of attention's scratch, given query heads, KV heads, features of each, and keys of the
    /// longest span.
    pub attention: fn([usize; 4], usize) -> usize,
    /// Most features of a head that attention takes.
    pub most_features: usize,
}

impl MetaPlace {
    /// Creates the meta device of a rank, in place of a device whose kernels need this scratch. Its kernels
    /// and moves are counted by the clock, if there is one.
    pub fn with(scratch: Scratch, clock: Option<Arc<dyn Clock>>) -> Self {
        Self(Arc::new(MetaRank { scratch: Some(scratch), clock, ..MetaRank::default() }))
    }
    /// Operations that the meter has counted since the last call: those of a kernel.
    pub fn own_flops(&self) -> u64 {
        let flops = self.0.meter.flops();
        flops - self.0.counted.swap(flops, Relaxed)
    }
    /// Scratch sizes of the device that this one stands for.
    ///
    /// # Panics
    /// If it stands for no device.
    pub fn scratch(&self) -> Scratch {
        self.0.scratch.expect("this meta device stands for no device, so it has no scratch sizes")
    }
}

impl Place for MetaPlace {
    type Ptr = ();
    type Buffer = ();
    type Pinned = ();
    const HOLDS: bool = false;
    fn alloc(&self, _: usize) -> Option<()> {
        Some(())
    }
    fn ptr((): &()) {}
    fn offset((): (), _: usize) {}
    fn put<S: AnyBitPattern>((): &mut (), _: usize, _: impl FnMut(usize, &mut [S])) {}
    fn get<S: AnyBitPattern>((): &(), _: usize, _: &mut Vec<S>) -> bool {
        false
    }
    fn pin(&self, _: usize) -> Option<()> {
        Some(())
    }
    fn copy_out((): &(), (): &mut (), _: usize) {}
    fn copy_in((): &(), (): &mut (), _: usize) {}
    fn clock(&self) -> Option<&dyn Clock> {
        self.0.clock.as_deref()
    }
    fn pool(&self) -> &Pool<Self> {
        &self.0.pool
    }
    fn meter(&self) -> &Meter {
        &self.0.meter
    }
}
