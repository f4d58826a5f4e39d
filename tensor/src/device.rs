//! A place with memory and a kind of number.
use crate::meter::Meter;
use crate::profile::Profile;
use crate::scalar::Scalar;

/// A place with memory and a kind of number. Cloning is cheap; clones share memory pool and meter: one per rank.
pub trait Device: Clone + Send + Sync + 'static {
    /// The kind of number. Where there is no memory it only says how many bytes one takes.
    type Elem: Scalar;
    /// An address inside a buffer; `()` where there is no memory.
    type Ptr: Copy + Send + Sync;
    /// Memory for numbers.
    type Buffer: Send + Sync;
    /// Memory for token ids.
    type Index: Send + Sync;

    /// Memory for `len` numbers: initialised, but with what is not said (poison in debug builds). Reuses freed
    /// buffers.
    fn alloc(&self, len: usize) -> Self::Buffer;
    /// Takes a buffer back for reuse.
    fn free(&self, buffer: Self::Buffer);
    /// Where a buffer begins.
    fn ptr(buffer: &Self::Buffer) -> Self::Ptr;
    /// An address `elements` further on.
    fn offset(ptr: Self::Ptr, elements: usize) -> Self::Ptr;
    /// Sets element `i` to `f(i)`, for every `i < len` in order.
    fn write(&self, buffer: &mut Self::Buffer, len: usize, f: &mut dyn FnMut(usize) -> Self::Elem);
    /// The first `len` values; `None` on a device that has none.
    fn read(&self, buffer: &Self::Buffer, len: usize) -> Option<Vec<Self::Elem>>;
    /// Puts token ids where kernels can read them.
    fn index(&self, ids: &[u32]) -> Self::Index;
    /// What this rank holds and computes.
    fn meter(&self) -> &Meter;
    /// Where its time goes; none where nothing is computed.
    fn profile(&self) -> Option<&Profile> {
        None
    }
}
