//! Places whose memory all ranks of this process can access: host memory, that of one GPU, or one GPU per
//! rank. Ranks there are threads, which meet and pass messages alike on every place; only copies and sums
//! differ.
use crate::call::windows::AllWindows;
use crate::{Elem, Reduce};
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Read};
use std::ops::Range;
use std::ptr::copy_nonoverlapping;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::time::Duration;
use tensor::{Host, HostPtr, Place};

/// A place that ranks share as threads of one process.
pub trait SharedPlace: Place {
    /// Makes the place of a world of `ranks` ranks, each of which waits at most `limit` in a call.
    ///
    /// # Errors
    /// One sentence that says why there is no such place.
    fn of_world(ranks: usize, limit: Duration) -> Result<Self, String>;
    /// Returns `rank`'s own part of the world's place.
    #[must_use]
    fn of_rank(&self, rank: usize) -> Self;
    /// Bytes that `ranks` ranks of this process can still allocate there, all together. None if the place is
    /// host memory.
    fn free_device_bytes(ranks: usize) -> Option<u64> {
        let _ = ranks;
        None
    }
    /// Returns the address in the form that ranks pass to each other.
    fn raw(ptr: Self::Ptr) -> *mut ();
    /// Copies bytes from one rank's memory to another's, after all earlier work of both ranks.
    ///
    /// # Safety
    /// Both ranges have `bytes` bytes and do not overlap; no other code accesses the bytes that are written.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize);
    /// Returns bytes of this place for reading on the host, after all earlier work of the rank.
    ///
    /// # Safety
    /// `from` has `bytes` bytes, and no code writes them while they are read.
    unsafe fn bytes<'a>(&self, from: *const u8, bytes: usize) -> Cow<'a, [u8]>;
    /// Writes bytes of this place, as they are read, after all earlier work of the rank.
    ///
    /// # Errors
    /// Those of reading; what was written then is not defined.
    ///
    /// # Safety
    /// `to` has `bytes` bytes, and no other code accesses them.
    unsafe fn fill(&self, to: *mut u8, bytes: usize, from: &mut dyn Read) -> io::Result<()>;
    /// Reduces a range of elements of all ranks' windows, in rank order, after all earlier work of these
    /// ranks.
    ///
    /// # Safety
    /// All windows contain the range, and the target has room for the result. No other code writes the range
    /// in a window, or accesses the target.
    unsafe fn reduce(&self, reduction: &Reduction);
    /// Returns true if the place runs collectives as a whole, by [`SharedPlace::jointly`], instead of rank by
    /// rank by copies and reductions.
    #[inline(always)]
    fn joins(&self) -> bool {
        false
    }
    /// Runs one call for all its ranks, after all their earlier work. All ranks have entered, with equal
    /// calls.
    ///
    /// # Safety
    /// Windows hold the elements of the call, and no other code accesses them.
    unsafe fn jointly(&self, joint: &JointCall) {
        unreachable!("this place does not run joint calls: {}", joint.call);
    }
    /// Draws the id by which processes of a group find each other in joint calls; drawn once for the group.
    fn drawn(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// One call of all ranks, for a place that runs calls as a whole. Ranks count in the group, except in
/// `members`.
pub struct JointCall<'a> {
    /// Ranks of the group, as ranks of the world.
    pub members: &'a [usize],
    /// Call as a sentence.
    pub call: &'a dyn Display,
    /// Name of the dtype: `f32`.
    pub number: &'static str,
    /// Bytes per element.
    pub size: usize,
    /// Windows of each rank: the data it gives, and its result. They may be equal, or one a block of the
    /// other. A message has none; those of ranks of other processes are null.
    pub windows: &'a [[*mut u8; 2]],
    /// Work of the call.
    pub what: JointOperation,
    /// Set if ranks are processes: this process' rank in the world, and the id drawn for the group.
    pub apart: Option<(usize, &'a [u8])>,
}

/// Work of a joint call; lengths are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JointOperation {
    /// Every rank takes the reduction over all ranks, of this length.
    Reduced(Reduce, usize),
    /// Every rank takes its block of the sum over all ranks: start and length of each rank's block.
    Scattered(Vec<[usize; 2]>),
    /// Every rank takes the data of all ranks, each of this length, in rank order.
    Gathered(usize),
    /// Every rank takes the first `n` columns of the data of all ranks, `rows` by `cols` each, side by side.
    Columns {
        /// Rows of each rank.
        rows: usize,
        /// Columns of each rank.
        cols: usize,
        /// Columns that are taken.
        n: usize,
    },
    /// Every rank takes the data of one rank: the rank, and the length.
    Spread(usize, usize),
    /// Pieces are copied.
    Moved(Vec<PieceMoved>),
}

/// A piece that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceMoved {
    /// Rank that gives the piece.
    pub from: usize,
    /// Rank that takes the piece.
    pub to: usize,
    /// Address that is read.
    pub source: *const u8,
    /// Address that is written.
    pub target: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
}

/// A reduction of a range of elements of all ranks' windows.
pub struct Reduction<'a> {
    pub(crate) windows: &'a AllWindows<'a>,
    pub(crate) elem: Elem,
    /// Elements of each window.
    pub range: Range<usize>,
    /// Operation.
    pub how: Reduce,
    /// Target of the result's first element. None writes the result over the range of every window.
    pub place: Option<*mut u8>,
}

impl Reduction<'_> {
    /// Name of the dtype: `f32`.
    pub fn number(&self) -> &'static str {
        self.elem.name
    }
    /// Start of each rank's window, in rank order.
    pub fn windows(&self) -> impl Iterator<Item = *mut u8> + '_ {
        (0..self.windows.ranks()).map(|rank| self.windows.of(rank))
    }
}

impl SharedPlace for Host {
    fn of_world(_: usize, _: Duration) -> Result<Self, String> {
        Ok(Self::default())
    }
    fn of_rank(&self, _: usize) -> Self {
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
    unsafe fn bytes<'a>(&self, from: *const u8, bytes: usize) -> Cow<'a, [u8]> {
        // SAFETY: the caller's promise.
        Cow::Borrowed(unsafe { from_raw_parts(from, bytes) })
    }
    unsafe fn fill(&self, to: *mut u8, bytes: usize, from: &mut dyn Read) -> io::Result<()> {
        // SAFETY: as above; the elements of a tensor are initialised.
        from.read_exact(unsafe { from_raw_parts_mut(to, bytes) })
    }
    #[inline(always)]
    unsafe fn reduce(&self, Reduction { windows, elem, range, how, place }: &Reduction) {
        // SAFETY: the caller's promise.
        unsafe { elem.join.expect("a dtype")(windows, *place, range.clone(), *how) }
    }
}
