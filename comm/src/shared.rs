//! Places whose memory all ranks of this process reach: the host's, that of one card, or that of a card each. Ranks there are
//! threads, which meet and pass messages in the same way whatever the place; only who copies and adds differs.
use crate::threads::AllWindows;
use crate::{Elem, Reduce};
use std::borrow::Cow;
use std::fmt::Display;
use std::ops::Range;
use std::ptr::copy_nonoverlapping;
use std::slice::from_raw_parts;
use std::time::Duration;
use tensor::{Host, HostPtr, Place};

/// A place that ranks share as threads of one process.
pub trait SharedPlace: Place {
    /// That of a world of so many ranks, each of which waits so long in a call at most.
    ///
    /// # Errors
    /// In one sentence, why there is no such place.
    fn of_world(ranks: usize, limit: Duration) -> Result<Self, String>;
    /// A rank's own part of a world's.
    #[must_use]
    fn of_rank(&self, rank: usize) -> Self;
    /// Bytes that so many ranks of this process can still take there, all together; none where it is the host's memory.
    fn free_beside_the_host(ranks: usize) -> Option<u64> {
        let _ = ranks;
        None
    }
    /// An address, as ranks show it to each other.
    fn raw(ptr: Self::Ptr) -> *mut ();
    /// Copies bytes from one rank's memory to another's, after all that their ranks did before.
    ///
    /// # Safety
    /// Both have as many bytes, which do not overlap; nobody else touches those that are written.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize);
    /// Bytes that lie there, for who reads them on the host, after all that the rank did before.
    ///
    /// # Safety
    /// So many lie there, and nobody writes them as long as they are read.
    unsafe fn bytes<'a>(&self, from: *const u8, bytes: usize) -> Cow<'a, [u8]>;
    /// Reduces a range of elements of all ranks' windows, in rank order, after all that these ranks did before.
    ///
    /// # Safety
    /// All windows hold the range, and so does what it is written to; nobody else writes it in a window, or touches it where the
    /// result goes.
    unsafe fn reduce(&self, reduction: &Reduction);
    /// Whether a world's place does what ranks do together as a whole, by [`SharedPlace::jointly`], not rank by rank by copies and
    /// reductions.
    #[inline(always)]
    fn joins(&self) -> bool {
        false
    }
    /// Does what ranks do together in one call, for all of them, after all that they did before. All have come, and all mean
    /// the same.
    ///
    /// # Safety
    /// Windows hold what the call says, and nobody else touches them.
    unsafe fn jointly(&self, joint: &Joint) {
        unreachable!("this place does not join {}", joint.call);
    }
    /// What ranks of a group that are processes find each other by in such calls, drawn once for all of them.
    fn drawn(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// What ranks do together in one call, for a place that does it as a whole. Ranks count in the group, but for its members.
pub struct Joint<'a> {
    /// The ranks, as ranks of the world.
    pub members: &'a [usize],
    /// The call, as a sentence.
    pub call: &'a dyn Display,
    /// The name of the kind of number: `f32`.
    pub number: &'static str,
    /// Bytes of one.
    pub size: usize,
    /// By rank: what it gives, and where it takes. Some are the same, or the same block of one; those of a message are none, and
    /// those of ranks of other processes are null.
    pub windows: &'a [[*mut u8; 2]],
    /// What is done.
    pub what: Jointly,
    /// Where ranks are processes: which rank of the world this one is, and what was drawn for the group.
    pub apart: Option<(usize, &'a [u8])>,
}

/// What is done in such a call; numbers are elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jointly {
    /// Every rank takes the reduction of all.
    Reduced(Reduce, usize),
    /// Every rank takes its block of the sum of all: where it begins, and how long it is.
    Scattered(Vec<[usize; 2]>),
    /// Every rank takes what all give, which is so much each, in rank order.
    Gathered(usize),
    /// Every rank takes what all give, `rows` by `cols` each, side by side, but only the first `n` columns.
    Columns {
        /// Rows of each.
        rows: usize,
        /// Columns of each.
        cols: usize,
        /// Columns that are taken.
        n: usize,
    },
    /// Every rank takes what the first number, a rank, gives.
    Spread(usize, usize),
    /// Pieces are copied.
    Moved(Vec<PieceMoved>),
}

/// A piece that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceMoved {
    /// Whose it is.
    pub from: usize,
    /// Who takes it.
    pub to: usize,
    /// Where it is.
    pub source: *const u8,
    /// Where it goes.
    pub target: *mut u8,
    /// How long it is.
    pub bytes: usize,
}

/// A reduction of a range of elements of all ranks' windows.
pub struct Reduction<'a> {
    pub(crate) windows: &'a AllWindows<'a>,
    pub(crate) elem: Elem,
    /// Which elements of each window.
    pub range: Range<usize>,
    /// What is computed of them.
    pub how: Reduce,
    /// Where the result's first element goes: over the range of every window (none), or to other memory.
    pub place: Option<*mut u8>,
}

impl Reduction<'_> {
    /// The name of the kind of number: `f32`.
    pub fn number(&self) -> &'static str {
        self.elem.name
    }
    /// Where each rank's window begins, in rank order.
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
    #[inline(always)]
    unsafe fn reduce(&self, Reduction { windows, elem, range, how, place }: &Reduction) {
        // SAFETY: the caller's promise.
        unsafe { elem.join.expect("numbers")(windows, *place, range.clone(), *how) }
    }
}
