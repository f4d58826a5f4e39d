//! Host memory: on cache-line boundaries, large pieces on huge pages where the system has them.
use std::alloc::{Layout, alloc, dealloc};

const HUGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Bytes on a cache-line boundary (a 2 MiB boundary, and huge pages if the system grants them, if large).
pub struct Bytes {
    at: *mut u8,
    layout: Layout,
}
// SAFETY: the bytes own their memory as a Vec would.
unsafe impl Send for Bytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// So many zeros, all of them touched, so that no page fault comes later; none if the system has no such memory.
    pub(crate) fn zeros(len: usize) -> Option<Self> {
        let align = if len >= HUGE { HUGE } else { CACHE_LINE };
        let layout = Layout::from_size_align(len.max(1), align).ok()?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            return None;
        }
        #[cfg(target_os = "linux")]
        if len >= HUGE {
            // SAFETY: advice on our own fresh pages; a system without huge pages refuses it, and nothing changes.
            unsafe { libc::madvise(at.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        // SAFETY: our own memory of so many bytes.
        unsafe { at.write_bytes(0, layout.size()) };
        Some(Self { at, layout })
    }
    /// Where they begin.
    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) }
    }
}
