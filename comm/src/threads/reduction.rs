//! The sum, or the stabiliser, of the ranks' windows, in rank order whatever the order in which ranks come: the same
//! bits in every run.
use crate::call::Reduce;
use crate::engine::nth_of;
use std::ops::Range;
use tensor::Scalar;

/// Elements reduced at a time, in registers.
const BLOCK: usize = 128;
/// Elements to which shares are rounded up, so that ranks do not write one cache line together.
const LINE: usize = 16;

/// The part of `len` elements that one of `n` ranks reduces.
pub(super) fn share(rank: usize, n: usize, len: usize) -> Range<usize> {
    let chunk = len.div_ceil(n).next_multiple_of(LINE);
    nth_of(rank, chunk, len)
}

/// Writes to every target the reduction of all sources, element by element of the range.
///
/// # Safety
/// Sources and targets hold the range; while this runs nobody else writes it in a source or touches it in a target. A
/// target is either a source or disjoint from all.
#[inline(always)]
pub(super) unsafe fn reduce<S: Scalar>(
    sources: &(impl Iterator<Item = *mut S> + Clone),
    targets: &(impl Iterator<Item = *mut S> + Clone),
    range: Range<usize>,
    how: Reduce,
) {
    let mut at = range.start;
    while at + BLOCK <= range.end {
        // SAFETY: inside the range, for which the caller vouches.
        unsafe { reduce_block::<S, BLOCK>(sources, targets, at, how) };
        at += BLOCK;
    }
    for at in at..range.end {
        // SAFETY: as above.
        unsafe { reduce_block::<S, 1>(sources, targets, at, how) };
    }
}

/// `LEN` elements from `at` on; their number is fixed so that they stay in registers.
///
/// # Safety
/// As above, for these elements.
#[inline(always)]
unsafe fn reduce_block<S: Scalar, const LEN: usize>(
    sources: &(impl Iterator<Item = *mut S> + Clone),
    targets: &(impl Iterator<Item = *mut S> + Clone),
    at: usize,
    how: Reduce,
) {
    // SAFETY: the caller vouches for it; an array is aligned as its elements are.
    let mut blocks = sources.clone().map(|source| unsafe { &*source.add(at).cast::<[S; LEN]>() });
    let Some(mut sum) = blocks.next().copied() else { return };
    for block in blocks {
        match how {
            Reduce::Sum => sum.iter_mut().zip(block).for_each(|(a, &b)| *a += b),
            Reduce::Stab => sum.iter_mut().zip(block).for_each(|(a, &b)| *a = S::stab(*a, b)),
        }
    }
    for target in targets.clone() {
        // SAFETY: as above.
        unsafe { *target.add(at).cast::<[S; LEN]>() = sum };
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
