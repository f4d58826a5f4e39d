//! Allocator that counts the allocations of each thread, for tests here and in other crates.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! { static TAKEN: Cell<usize> = const { Cell::new(0) }; }

struct Counting;
// SAFETY: the system's allocator does the work; default methods call `alloc` and `dealloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller's promises are the system's conditions.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}
#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of allocations of this thread so far.
pub(crate) fn taken() -> usize {
    TAKEN.get()
}
