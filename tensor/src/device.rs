//! A place with memory and a kind of number.
use crate::meter::Meter;
use crate::pool::Pool;
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

    /// How many elements a piece of memory has room for that is taken for `len`. What rests is used again where this is
    /// equal.
    fn room(len: usize) -> usize;
    /// Fresh memory for `size` numbers, initialised.
    fn alloc(&self, size: usize) -> Self::Buffer;
    /// Fresh memory for `size` token ids.
    fn alloc_index(&self, size: usize) -> Self::Index;
    /// What is not in use. Clones of the device share it.
    fn pool(&self) -> &Pool<Self>;
    /// Fills a buffer with what shows when it is read before it is written.
    fn poison(buffer: &mut Self::Buffer);
    /// Where a buffer begins.
    fn ptr(buffer: &Self::Buffer) -> Self::Ptr;
    /// An address `elements` further on.
    fn offset(ptr: Self::Ptr, elements: usize) -> Self::Ptr;
    /// Sets element `i` to `f(i)`, for every `i < len` in order.
    fn write(&self, buffer: &mut Self::Buffer, len: usize, f: &mut dyn FnMut(usize) -> Self::Elem);
    /// Appends the first `len` values to `values`; `false` on a device that has none.
    fn read(&self, buffer: &Self::Buffer, len: usize, values: &mut Vec<Self::Elem>) -> bool;
    /// Puts token ids where kernels can read them, as many as there is room for at most.
    fn index(index: &mut Self::Index, ids: &mut dyn Iterator<Item = u32>);
    /// What this rank holds and computes.
    fn meter(&self) -> &Meter;
    /// Where its time goes; none where nothing is computed.
    fn profile(&self) -> Option<&Profile> {
        None
    }
}
