//! The sum, or the stabiliser, of the ranks' windows, in rank order whatever the order in which ranks come: the same
//! bits in every run.
use crate::call::Reduce;
use std::ops::Range;
use tensor::Scalar;

/// Elements reduced at a time; they stay in the first cache.
const PIECE: usize = 1024;
/// Elements to which shares are rounded up, so that ranks do not write one cache line together.
const LINE: usize = 16;

/// The part of `len` elements that one of `n` ranks reduces.
pub(super) fn share(rank: usize, n: usize, len: usize) -> Range<usize> {
    let chunk = len.div_ceil(n).next_multiple_of(LINE);
    (rank * chunk).min(len)..((rank + 1) * chunk).min(len)
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
    let mut piece = [S::ZERO; PIECE];
    for at in range.clone().step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(range.end - at)];
        for (i, source) in sources.clone().enumerate() {
            // SAFETY: inside the range, which the caller vouches for.
            let source = unsafe { std::slice::from_raw_parts(source.add(at), piece.len()) };
            match how {
                _ if i == 0 => piece.copy_from_slice(source),
                Reduce::Sum => piece.iter_mut().zip(source).for_each(|(a, &b)| *a += b),
                Reduce::Stab => piece.iter_mut().zip(source).for_each(|(a, &b)| *a = S::stab(*a, b)),
            }
        }
        for target in targets.clone() {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), target.add(at), piece.len()) };
        }
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
