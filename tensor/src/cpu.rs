//! The host as a device: one rank's share of it, with a memory pool, a meter and a profile.
use crate::device::Device;
use crate::meter::Meter;
use crate::pages::Buffer;
use crate::pool::Pool;
use crate::profile::Profile;
use crate::scalar::Scalar;
use crate::view::{View, ViewMut};
use std::sync::Arc;

/// One rank's share of the host. Freed buffers are kept for reuse, so that a steady state takes no memory.
pub struct Cpu<S: Scalar>(Arc<Rank<S>>);

struct Rank<S: Scalar> {
    meter: Meter,
    profile: Profile,
    pool: Pool<Cpu<S>>,
}

impl<S: Scalar> Clone for Cpu<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
impl<S: Scalar> Default for Cpu<S> {
    fn default() -> Self {
        Self(Arc::new(Rank { meter: Meter::default(), profile: Profile::default(), pool: Pool::default() }))
    }
}

/// An address in a buffer.
pub struct At<S>(*mut S);
impl<S> Clone for At<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for At<S> {}
// SAFETY: only views, which carry a borrow, read or write through it.
unsafe impl<S: Send> Send for At<S> {}
// SAFETY: as above.
unsafe impl<S: Sync> Sync for At<S> {}
impl<S> At<S> {
    /// The raw address. It is valid while the view that gave it is.
    pub fn raw(self) -> *mut S {
        self.0
    }
}

impl<S: Scalar> Device for Cpu<S> {
    type Elem = S;
    type Ptr = At<S>;
    type Buffer = Buffer<S>;
    type Index = Vec<u32>;
    /// Small sizes are an eighth apart, so that lengths which grow token by token still find what rests.
    fn room(len: usize) -> usize {
        const EXACT_FROM: usize = 1 << 18;
        if !(16..EXACT_FROM).contains(&len) {
            return len;
        }
        len.next_multiple_of(1 << (len.ilog2() - 3))
    }
    fn alloc(&self, size: usize) -> Buffer<S> {
        Buffer::new(size)
    }
    fn alloc_index(&self, size: usize) -> Vec<u32> {
        Vec::with_capacity(size)
    }
    fn pool(&self) -> &Pool<Self> {
        &self.0.pool
    }
    fn poison(buffer: &mut Buffer<S>) {
        buffer.slice_mut().fill(S::NEG_INF);
    }
    fn ptr(buffer: &Buffer<S>) -> At<S> {
        At(buffer.at())
    }
    fn offset(At(ptr): At<S>, elements: usize) -> At<S> {
        At(ptr.wrapping_add(elements))
    }
    fn write(&self, buffer: &mut Buffer<S>, len: usize, f: &mut dyn FnMut(usize) -> S) {
        for (i, x) in buffer.slice_mut()[..len].iter_mut().enumerate() {
            *x = f(i);
        }
    }
    fn read(&self, buffer: &Buffer<S>, len: usize, values: &mut Vec<S>) -> bool {
        values.extend_from_slice(&buffer.slice()[..len]);
        true
    }
    fn index(index: &mut Vec<u32>, ids: &mut dyn Iterator<Item = u32>) {
        index.clear();
        index.extend(ids);
    }
    fn meter(&self) -> &Meter {
        &self.0.meter
    }
    #[inline]
    fn profile(&self) -> Option<&Profile> {
        Some(&self.0.profile)
    }
}

impl<'a, S: Scalar> View<'a, Cpu<S>> {
    /// One row.
    ///
    /// # Panics
    /// If there is no such row, or its numbers do not lie together; so it is with the others below.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [S] {
        assert!(i < self.rows() && self.col_stride() == 1);
        // SAFETY: inside the window, whose constructor borrowed the tensor.
        unsafe { std::slice::from_raw_parts(self.ptr().0.add(i * self.row_stride()), self.cols()) }
    }
    /// One number.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> S {
        assert!(i < self.rows() && j < self.cols());
        // SAFETY: as above.
        unsafe { *self.ptr().0.add(i * self.row_stride() + j * self.col_stride()) }
    }
}

impl<S: Scalar> ViewMut<'_, Cpu<S>> {
    /// One row, to write.
    ///
    /// # Panics
    /// If there is no such row, or its numbers do not lie together; so it is with the others below.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [S] {
        assert!(i < self.rows() && self.col_stride() == 1);
        // SAFETY: inside the window, borrowed mutably; disjoint windows come only from `split_cols`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().0.add(i * self.row_stride()), self.cols()) }
    }
    /// Sets one number.
    #[inline(always)]
    pub fn set(&mut self, i: usize, j: usize, x: S) {
        assert!(i < self.rows() && j < self.cols());
        // SAFETY: inside the window, borrowed mutably.
        unsafe { self.ptr().0.add(i * self.row_stride() + j * self.col_stride()).write(x) }
    }
    /// The whole window as one slice.
    pub fn flat(&mut self) -> &mut [S] {
        assert!(self.is_contiguous());
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().0, self.rows() * self.cols()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Category, F61, Tensor};

    #[test]
    fn freed_memory_is_used_again() {
        let cpu = Cpu::<f32>::default();
        for len in [1000, 1001, 1020, 999] {
            drop(Tensor::empty(&cpu, Category::Buffers, 1, len));
        }
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
        assert_eq!(t.view().ptr().raw() as usize % (2 << 20), 0);
    }
}
