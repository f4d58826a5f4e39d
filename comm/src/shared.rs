//! Places whose memory all ranks of this process reach: the host's, or that of one card. Ranks there are threads, which meet
//! and pass messages in the same way whatever the place; only who copies and adds differs.
use crate::threads::{AllWindows, Into};
use crate::{Elem, Reduce};
use std::ops::Range;
use std::ptr::copy_nonoverlapping;
use tensor::{Host, HostPtr, Place};

/// A place that ranks share as threads of one process.
pub trait Shared: Place {
    /// A rank's own part of it.
    ///
    /// # Panics
    /// With [`Failure`](tensor::Failure), if there is no such place.
    fn of_rank(rank: usize) -> Self;
    /// Bytes that ranks of this process can still take there, all together; none where it is the host's memory.
    fn free_beside_the_host() -> Option<u64> {
        None
    }
    /// An address, as ranks show it to each other.
    fn raw(ptr: Self::Ptr) -> *mut ();
    /// Copies bytes from one rank's memory to another's, after all that their ranks did before.
    ///
    /// # Safety
    /// Both have as many bytes, which do not overlap; nobody else touches those that are written.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize);
    /// Reduces a range of elements of all ranks' windows, in rank order, after all that these ranks did before.
    ///
    /// # Safety
    /// All windows hold the range, and so does what it is written to; nobody else writes it in a window, or touches it where the
    /// result goes.
    unsafe fn reduce(&self, reduction: &Reduction);
}

/// A reduction of a range of elements of all ranks' windows.
pub struct Reduction<'a> {
    pub(crate) windows: &'a AllWindows<'a>,
    pub(crate) into: Into,
    pub(crate) range: Range<usize>,
    pub(crate) how: Reduce,
    pub(crate) elem: Elem,
}

impl Reduction<'_> {
    /// The name of the kind of number: `f32`.
    pub fn number(&self) -> &'static str {
        self.elem.name
    }
    /// Which elements of each window.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
    /// What is computed of them.
    pub fn how(&self) -> Reduce {
        self.how
    }
    /// Where each rank's window begins, in rank order.
    pub fn windows(&self) -> impl Iterator<Item = *mut u8> + '_ {
        (0..self.windows.ranks()).map(|rank| self.windows.of(rank))
    }
    /// Where the result's first element goes: over the range of every window (none), or to other memory.
    pub fn place(&self) -> Option<*mut u8> {
        match self.into {
            Into::All => None,
            Into::Place(to) => Some(to.cast()),
        }
    }
}

impl Shared for Host {
    fn of_rank(_: usize) -> Self {
        Self::default()
    }
    #[inline(always)]
    fn raw(ptr: HostPtr) -> *mut () {
        ptr.raw()
    }
    #[inline(always)]
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { copy_nonoverlapping(from, to, bytes) }
    }
    #[inline(always)]
    unsafe fn reduce(&self, Reduction { windows, into, range, how, elem }: &Reduction) {
        // SAFETY: the caller's promise.
        unsafe { elem.join.expect("numbers")(windows, *into, range.clone(), *how) }
    }
}
