//! Windows: memory that ranks show each other.
use crate::Call;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// Seat of a rank. Fields that peers read often are in one cache line, those that they rarely read in
/// another.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Seat {
    pub(super) epoch: AtomicUsize, // number of this rank's arrivals
    pub(super) window: AtomicPtr<()>,
    pub(super) key: [AtomicUsize; 3],
    pub(super) call: AtomicPtr<Call>,
    pub(super) aside: Aside,
}
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Aside {
    pub(super) inside: AtomicBool, // this rank touches its peers' windows
    pub(super) busy: AtomicBool,   // this rank is in a call
}

/// Windows of all ranks, for ranks that are inside.
pub(crate) enum AllWindows<'a> {
    /// Windows of ranks that meet.
    Seats(&'a [Seat]),
    /// Windows of ranks that have posted a call.
    Posted(&'a [Option<Posted>]),
}
impl<'a> AllWindows<'a> {
    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Seats(seats) => seats.len(),
            Self::Posted(posted) => posted.len(),
        }
    }
    /// Returns the window of a rank of the group, of the type it was shown with.
    #[inline(always)]
    pub(crate) fn of<S>(&self, rank: usize) -> *mut S {
        match self {
            Self::Seats(seats) => seats[rank].window.load(Relaxed).cast(),
            Self::Posted(posted) => posted[rank].as_ref().expect("all have come").give.cast(),
        }
    }
    /// Returns the windows that a rank of the group gives and takes. Ranks that meet show both if their place
    /// joins.
    pub(super) fn both(&self, rank: usize) -> [*mut (); 2] {
        match self {
            // SAFETY: each rank shows such a pair, which lives where the rank made its call.
            Self::Seats(_) => unsafe { *self.of::<[*mut (); 2]>(rank) },
            Self::Posted(posted) => posted[rank].as_ref().map(|p| [p.give, p.take]).expect("all have come"),
        }
    }
    /// Returns the call of a rank of the group.
    pub(super) fn call(&self, rank: usize) -> &'a Call {
        match self {
            // SAFETY: the call lives where its rank made it, and that rank does not leave while this one is
            // inside.
            Self::Seats(seats) => unsafe { &*seats[rank].call.load(Relaxed) },
            Self::Posted(posted) => &posted[rank].as_ref().expect("all have come").call,
        }
    }
}

/// A rank's windows of a call.
pub(crate) struct Posted {
    pub(super) call: Call,
    pub(super) give: *mut (),
    pub(super) take: *mut (),
}
