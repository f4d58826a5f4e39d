//! The host as a place, and dtypes on it: one rank's part, with a memory pool, a meter and a profile.
use crate::{Bytes, Meter, On, Place, Pool, Profile, Scalar, Strided, View, ViewMut};
use bytemuck::AnyBitPattern;
use std::io;
use std::sync::Arc;

/// One rank's part of the host. Freed memory is kept for reuse: small pieces always, large ones as long as
/// the pool stays near the rank's peak.
#[derive(Clone, Default)]
pub struct Host(Arc<Rank>);

#[derive(Default)]
struct Rank {
    meter: Meter,
    profile: Profile,
    pool: Pool<Host>,
}

/// An address in the memory of the host.
#[derive(Clone, Copy)]
pub struct HostPtr(*mut u8);
// SAFETY: only views, which carry a borrow, read or write through it.
unsafe impl Send for HostPtr {}
// SAFETY: as above.
unsafe impl Sync for HostPtr {}
impl HostPtr {
    /// Raw address, valid as long as the view that returned it.
    #[inline(always)]
    pub fn raw<S>(self) -> *mut S {
        self.0.cast()
    }
}

impl Place for Host {
    type Ptr = HostPtr;
    type Buffer = Bytes;
    type Pinned = Bytes;
    fn alloc(&self, bytes: usize) -> Option<Bytes> {
        Bytes::zeros(bytes)
    }
    fn ptr(buffer: &Bytes) -> HostPtr {
        HostPtr(buffer.at())
    }
    #[inline(always)]
    fn offset(HostPtr(ptr): HostPtr, bytes: usize) -> HostPtr {
        HostPtr(ptr.wrapping_add(bytes))
    }
    fn put<S: AnyBitPattern>(buffer: &mut Bytes, len: usize, mut numbers: impl FnMut(usize, &mut [S])) {
        numbers(0, slice_mut(buffer, len));
    }
    fn get<S: AnyBitPattern>(buffer: &Bytes, len: usize, numbers: &mut Vec<S>) -> bool {
        numbers.extend_from_slice(slice(buffer, len));
        true
    }
    fn on_host<S: AnyBitPattern>(buffer: &Bytes, len: usize) -> Option<&[S]> {
        Some(slice(buffer, len))
    }
    fn bytes(buffer: &Bytes, bytes: usize, read: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        read(slice(buffer, bytes))
    }
    fn pin(&self, bytes: usize) -> Option<Bytes> {
        Bytes::zeros(bytes)
    }
    fn copy_out(from: &Bytes, to: &mut Bytes, bytes: usize) {
        slice_mut::<u8>(to, bytes).copy_from_slice(slice(from, bytes));
    }
    fn copy_in(from: &Bytes, to: &mut Bytes, bytes: usize) {
        Self::copy_out(from, to, bytes);
    }
    fn pool(&self) -> &Pool<Self> {
        &self.0.pool
    }
    fn meter(&self) -> &Meter {
        &self.0.meter
    }
    #[inline]
    fn profile(&self) -> Option<&Profile> {
        Some(&self.0.profile)
    }
}

fn fits<S>(buffer: &Bytes, len: usize) {
    const { assert!(size_of::<S>() > 0 && align_of::<S>() <= 64) };
    assert!(len <= buffer.len() / size_of::<S>(), "{len} elements do not fit into {} bytes", buffer.len());
}
/// Returns the first `len` elements of a piece of memory.
pub(crate) fn slice<S: AnyBitPattern>(buffer: &Bytes, len: usize) -> &[S] {
    fits::<S>(buffer, len);
    // SAFETY: inside initialised memory that is aligned for any dtype; every bit pattern is a valid element.
    unsafe { std::slice::from_raw_parts(buffer.at().cast(), len) }
}
/// Returns the first `len` elements of a piece of memory, to write.
pub(crate) fn slice_mut<S: AnyBitPattern>(buffer: &mut Bytes, len: usize) -> &mut [S] {
    fits::<S>(buffer, len);
    // SAFETY: as above, borrowed mutably.
    unsafe { std::slice::from_raw_parts_mut(buffer.at().cast(), len) }
}

/// Device of one dtype on the host.
pub type Cpu<S> = On<Host, S>;

impl<S: Scalar, B> Strided<Cpu<S>, B> {
    /// Address of the window's first element.
    #[inline(always)]
    pub fn raw(&self) -> *mut S {
        self.ptr().raw()
    }
}

impl<'a, S: Scalar> View<'a, Cpu<S>> {
    /// Returns one row.
    ///
    /// # Panics
    /// If there is no such row, or its elements are not contiguous.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [S] {
        assert!(i < self.rows() && self.col_stride() == 1);
        // SAFETY: inside the window, whose constructor borrowed the tensor.
        unsafe { std::slice::from_raw_parts(self.raw().add(i * self.row_stride()), self.cols()) }
    }
    /// Returns one element.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> S {
        assert!(i < self.rows() && j < self.cols());
        // SAFETY: as above.
        unsafe { *self.raw().add(i * self.row_stride() + j * self.col_stride()) }
    }
}

impl<S: Scalar> ViewMut<'_, Cpu<S>> {
    /// Returns one row, to write.
    ///
    /// # Panics
    /// If there is no such row, or its elements are not contiguous.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [S] {
        assert!(i < self.rows() && self.col_stride() == 1);
        // SAFETY: inside the window, borrowed mutably; disjoint windows come only from `split_cols`.
        unsafe { std::slice::from_raw_parts_mut(self.raw().add(i * self.row_stride()), self.cols()) }
    }
    /// Sets one element.
    #[inline(always)]
    pub fn set(&mut self, i: usize, j: usize, x: S) {
        assert!(i < self.rows() && j < self.cols());
        // SAFETY: inside the window, borrowed mutably.
        unsafe { self.raw().add(i * self.row_stride() + j * self.col_stride()).write(x) }
    }
    /// Returns the whole window as one slice.
    pub fn flat(&mut self) -> &mut [S] {
        assert!(self.is_contiguous());
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.raw(), self.rows() * self.cols()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Category, Device, F61, Tensor};

    #[test]
    fn freed_memory_is_used_again_whatever_the_number() {
        let cpu = Cpu::<f32>::default();
        for len in [1000, 1001, 1020, 999] {
            drop(Tensor::empty(&cpu, Category::Buffers, 1, len));
        }
        drop(Tensor::empty(Cpu::<F61>::on(cpu.place()), Category::Buffers, 1, 505));
        assert_eq!(cpu.meter().reserved(), 1024 * 4);
    }

    #[test]
    fn fresh_memory_is_poisoned_in_debug_builds() {
        let t = Tensor::empty(&Cpu::<F61>::default(), Category::Buffers, 1, 3);
        assert_eq!(
            t.read().unwrap(),
            if cfg!(debug_assertions) { [F61::NEG_INF; 3] } else { [F61::ZERO; 3] }
        );
    }

    #[test]
    fn large_memory_lies_on_huge_page_boundaries() {
        let t = Tensor::empty(&Cpu::<f32>::default(), Category::Buffers, 1024, 1024);
        assert_eq!(t.view().raw() as usize % (2 << 20), 0);
    }
}
