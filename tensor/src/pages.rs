//! Host memory: aligned to cache lines; large pieces on huge pages if the system has them.
use memmap2::{MmapMut, MmapOptions};
use std::alloc::{GlobalAlloc, Layout, System};

const HUGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Bytes aligned to a cache line; large pieces are aligned to 2 MiB, on huge pages if the system grants them.
pub struct Bytes {
    at: *mut u8,
    layout: Layout,
    map: Option<MmapMut>, // of a large piece: returned as a whole, while a heap would keep holes
}
// SAFETY: the bytes own their memory as a Vec would.
unsafe impl Send for Bytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Allocates zeros and touches every page, so that no page fault comes later; `None` if the system has no
    /// such memory.
    pub(crate) fn zeros(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), CACHE_LINE).ok()?;
        let mut map = None;
        let memory = if len < HUGE {
            // SAFETY: the layout is not empty.
            unsafe { System.alloc(layout) } // not a program's allocator, which may end the process
        } else {
            let pages = map.insert(MmapOptions::new().len(len.checked_add(HUGE)?).map_anon().ok()?);
            let begin = pages.as_ptr().align_offset(HUGE);
            #[cfg(target_os = "linux")] // a system without huge pages refuses it, and nothing changes
            drop(pages.advise_range(memmap2::Advice::HugePage, begin, len));
            pages[begin..].as_mut_ptr()
        };
        if memory.is_null() {
            return None;
        }
        // SAFETY: our own memory of this many bytes.
        unsafe { memory.write_bytes(0, len.max(1)) };
        Some(Self { at: memory, layout, map })
    }
    /// Address of the first byte.
    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.map.is_none() {
            // SAFETY: allocated with this layout.
            unsafe { System.dealloc(self.at, self.layout) }
        }
    }
}
