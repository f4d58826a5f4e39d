//! Host memory for numbers: on cache-line boundaries, large pieces on huge pages where the system has them.
use crate::scalar::Scalar;
use std::alloc::{Layout, alloc, dealloc};

/// How a panic begins where the system has no memory.
pub const OUT_OF_MEMORY: &str = "out of memory";
const HUGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Numbers on a cache-line boundary (a 2 MiB boundary, and huge pages if the system grants them, if large).
pub struct Buffer<S> {
    at: *mut S,
    len: usize,
}
// SAFETY: the buffer owns its memory as a Vec would.
unsafe impl<S: Send> Send for Buffer<S> {}
// SAFETY: shared access only reads.
unsafe impl<S: Sync> Sync for Buffer<S> {}

impl<S: Scalar> Buffer<S> {
    fn layout(len: usize) -> Layout {
        const { assert!(size_of::<S>() > 0 && align_of::<S>() <= CACHE_LINE) };
        let bytes = len.max(1).checked_mul(size_of::<S>()).expect("a size that fits");
        Layout::from_size_align(bytes, if bytes >= HUGE { HUGE } else { CACHE_LINE })
            .expect("a size that fits")
    }
    /// Memory for `len` zeros, all of it touched, so that no page fault comes later.
    ///
    /// # Panics
    /// If the system has no such memory.
    pub(crate) fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        assert!(!at.is_null(), "{OUT_OF_MEMORY}: {} bytes were asked for", layout.size());
        #[cfg(target_os = "linux")]
        if layout.size() >= HUGE {
            // SAFETY: advice on our own fresh pages; a system without huge pages refuses it, and nothing changes.
            unsafe { libc::madvise(at.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        let at = at.cast::<S>();
        for i in 0..len {
            // SAFETY: our own memory of `len` elements; reading fresh memory would be undefined, so there is none.
            unsafe { at.add(i).write(S::ZERO) };
        }
        Self { at, len }
    }
    /// Where they begin.
    pub(crate) fn at(&self) -> *mut S {
        self.at
    }
    /// The numbers, to write.
    pub(crate) fn slice_mut(&mut self) -> &mut [S] {
        // SAFETY: our own initialised memory, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
    /// The numbers, to read.
    pub(crate) fn slice(&self) -> &[S] {
        // SAFETY: our own initialised memory, borrowed.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<S> Drop for Buffer<S> {
    fn drop(&mut self) {
        let bytes = self.len.max(1) * size_of::<S>();
        let align = if bytes >= HUGE { HUGE } else { CACHE_LINE };
        // SAFETY: allocated with this layout, which was valid then.
        unsafe { dealloc(self.at.cast(), Layout::from_size_align_unchecked(bytes, align)) }
    }
}
