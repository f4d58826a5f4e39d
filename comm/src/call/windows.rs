//! Windows: memory that ranks show each other, and its sum or stabiliser. A reduction is taken in rank order,
//! whatever the order in which ranks arrive: the same bits in every run. A sum of a narrow dtype is taken in
//! its wide dtype and rounded once, at the end.
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use crate::{Call, Reduce};
use kernels::widest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::any::TypeId;
use std::ops::Range;
use tensor::{Scalar, every_float};

/// Seat of a rank. Fields that peers read often are in one cache line, those that they rarely read in
/// another.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Seat {
    pub(crate) epoch: AtomicUsize, // number of this rank's arrivals
    pub(crate) window: AtomicPtr<()>,
    pub(crate) key: [AtomicUsize; 3],
    pub(crate) call: AtomicPtr<Call>,
    pub(crate) aside: Aside,
}
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Aside {
    pub(crate) inside: AtomicBool, // this rank touches its peers' windows
    pub(crate) busy: AtomicBool,   // this rank is in a call
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
    pub(crate) fn both(&self, rank: usize) -> [*mut (); 2] {
        match self {
            // SAFETY: each rank shows such a pair, which lives where the rank made its call.
            Self::Seats(_) => unsafe { *self.of::<[*mut (); 2]>(rank) },
            Self::Posted(posted) => posted[rank].as_ref().map(|p| [p.give, p.take]).expect("all have come"),
        }
    }
    /// Returns the call of a rank of the group.
    pub(crate) fn call(&self, rank: usize) -> &'a Call {
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
    pub(crate) call: Call,
    pub(crate) give: *mut (),
    pub(crate) take: *mut (),
}

/// Reduces a range of elements of all windows: in place in all windows, or to other memory, which begins with
/// the range.
///
/// # Safety
/// All windows hold the range, and the other memory has room for it. While this runs, no other code writes
/// the range in a window, or touches it in the target.
pub(crate) type Join = unsafe fn(&AllWindows, Option<*mut u8>, Range<usize>, Reduce);

/// Serializes a join as a bool: true if there is one.
#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // what serde calls
pub(crate) fn joins<S: Serializer>(join: &Option<Join>, to: S) -> Result<S::Ok, S::Error> {
    join.is_some().serialize(to)
}

/// Deserializes a join for a stand-in: a stand-in takes nothing, so it reduces nothing.
pub(crate) fn joined<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Join>, D::Error> {
    unsafe fn never(_: &AllWindows, _: Option<*mut u8>, _: Range<usize>, _: Reduce) {
        unreachable!("a stand-in reduces nothing")
    }
    bool::deserialize(from).map(|joins| joins.then_some(never as Join))
}

/// Returns the function that reduces elements of one dtype.
pub(crate) fn join_of<S: Scalar>() -> Join {
    compiled_here(TypeId::of::<S>()).unwrap_or(join::<S>)
}
/// Defines the function's instances for floats: compiled once, in this crate, instead of in every crate that
/// calls a collective.
macro_rules! joins {
    ($($variant:ident $number:ty, $about:literal;)*) => {
        #[inline(never)]
        fn compiled_here(number: TypeId) -> Option<Join> {
            $(if number == TypeId::of::<$number>() {
                return Some(join::<$number>);
            })*
            None
        }
    };
}
every_float!(joins);

unsafe fn join<S: Scalar>(windows: &AllWindows, to: Option<*mut u8>, range: Range<usize>, how: Reduce) {
    let all = (0..windows.ranks()).map(|rank| windows.of::<S>(rank));
    match to {
        // SAFETY: the caller's promise.
        None => widest(
            #[inline(always)]
            || unsafe { reduce(&all, &all, range, how) },
        ),
        Some(to) => {
            let sources = all.map(|window| window.wrapping_add(range.start));
            let targets = std::iter::once(to.cast::<S>());
            // SAFETY: the caller's promise.
            widest(
                #[inline(always)]
                || unsafe { reduce(&sources, &targets, 0..range.len(), how) },
            );
        }
    }
}

/// Elements reduced at a time, in registers.
const BLOCK: usize = 128;
/// Multiple to which shares are rounded up, so that no two ranks write to one cache line.
const LINE: usize = 16;

/// Returns a rank's range of `n` elements if each rank has `each` of them; the last ranks have fewer, or
/// none.
pub(crate) fn chunk_range(rank: usize, each: usize, n: usize) -> Range<usize> {
    (rank * each).min(n)..((rank + 1) * each).min(n)
}

/// Returns the part of `len` elements that one of `n` ranks reduces.
pub(crate) fn share(rank: usize, n: usize, len: usize) -> Range<usize> {
    chunk_range(rank, len.div_ceil(n).next_multiple_of(LINE), len)
}

/// Writes to every target the reduction of all sources, element by element of the range.
///
/// # Safety
/// Sources and targets hold the range. While this runs, no other code writes it in a source or touches it in
/// a target. A target is either a source or disjoint from all sources.
#[inline(always)]
pub(crate) unsafe fn reduce<S: Scalar>(
    sources: &(impl Iterator<Item = *mut S> + Clone),
    targets: &(impl Iterator<Item = *mut S> + Clone),
    range: Range<usize>,
    how: Reduce,
) {
    let mut begin = range.start;
    while begin + BLOCK <= range.end {
        // SAFETY: inside the range, as the caller promises.
        unsafe { reduce_block::<S, BLOCK>(sources, targets, begin, how) };
        begin += BLOCK;
    }
    for begin in begin..range.end {
        // SAFETY: as above.
        unsafe { reduce_block::<S, 1>(sources, targets, begin, how) };
    }
}

/// Reduces `LEN` elements from `at` on; the constant length keeps them in registers.
///
/// # Safety
/// Sources and targets hold these elements; otherwise the same as [`reduce`].
#[inline(always)]
unsafe fn reduce_block<S: Scalar, const LEN: usize>(
    sources: &(impl Iterator<Item = *mut S> + Clone),
    targets: &(impl Iterator<Item = *mut S> + Clone),
    at: usize,
    how: Reduce,
) {
    // SAFETY: the caller's promise; an array is aligned as its elements are.
    let mut blocks = sources.clone().map(|source| unsafe { &*source.add(at).cast::<[S; LEN]>() });
    let Some(first) = blocks.next() else { return };
    let mut result = *first;
    match how {
        Reduce::Sum => {
            let mut sum = [S::Wide::ZERO; LEN];
            sum.iter_mut().zip(first).for_each(|(sum, x)| *sum = x.widen());
            for block in blocks {
                sum.iter_mut().zip(block).for_each(|(sum, x)| *sum += x.widen());
            }
            result.iter_mut().zip(sum).for_each(|(result, sum)| *result = S::narrow(sum));
        }
        Reduce::Stab => {
            for block in blocks {
                result.iter_mut().zip(block).for_each(|(a, &b)| *a = S::stab(*a, b));
            }
        }
    }
    for target in targets.clone() {
        // SAFETY: the caller's promise.
        unsafe { *target.add(at).cast::<[S; LEN]>() = result };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a gap, an overlap, a share beyond the end.
    #[test]
    fn shares_cover_everything_once() {
        for n in 1..9 {
            for len in [0, 1, 15, 16, 17, 100, 1000, 4096] {
                let all: Vec<_> = (0..n).flat_map(|rank| share(rank, n, len)).collect();
                assert!(all.into_iter().eq(0..len), "{n} {len}");
            }
        }
    }
}
