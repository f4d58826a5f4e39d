//! Products of floats of 16 bits by blocks: sums are f32, and results are rounded once, after the last block
//! of K.
//!
//! Loops, outermost first: M by 1024, N (B's block stays in L2), K, M by strips (A's strip is packed on first
//! use). A bf16 result has its sums in separate memory until they are complete; an f32 result is summed in
//! place.
use super::super::factor::{Factor, Sums, aligned};
use super::super::simd::widest;
use std::cell::RefCell;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use tensor::Scalar;

/// Rows of A that share a block of B.
pub(super) const MC: usize = 1024;

/// Layout and product of blocks.
pub(crate) trait Inner<S> {
    /// Steps of K and columns of a block.
    const SIZE: [usize; 2];
    /// Rows of A that are packed together, and rows of C that are rounded together.
    const STRIP: usize;
    /// Packs `k` rows and `n` columns of B.
    ///
    /// # Safety
    /// The windows are valid, `to` has room for the block with its columns rounded up to a multiple of 16,
    /// and the CPU has the features needed. The other methods require the same.
    unsafe fn right(to: *mut f32, b: Factor<S>, k: usize, n: usize) -> Factor<f32>;
    /// Packs `m` rows and `k` columns of A, rows rounded up to a multiple of 16; unless `fresh`, they are
    /// packed already.
    unsafe fn left(to: *mut f32, a: Factor<S>, m: usize, k: usize, fresh: bool) -> Factor<f32>;
    /// C\[m,n\] (+)= A·B, of packed blocks.
    unsafe fn multiply(size: [usize; 3], c: Sums<f32>, a: Factor<f32>, b: Factor<f32>);
}

/// A's block, B's block, and incomplete sums.
type BlockMemory = [Vec<f32>; 3];
thread_local! { static MEMORY: RefCell<BlockMemory> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) }; }

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], k at least 1.
///
/// # Safety
/// The windows are valid, C overlaps neither factor, and the CPU has the features that `I` needs.
pub(in crate::cpu) unsafe fn product<I: Inner<S>, S: Scalar, C: Scalar<Wide = f32>>(
    [m, n, k]: [usize; 3],
    c: Sums<C>,
    a: Factor<S>,
    b: Factor<S>,
) {
    let [most_k, most_n] = I::SIZE;
    let (mc, kc, nc) = (m.min(MC), k.min(most_k), n.min(most_n));
    MEMORY.with_borrow_mut(|[pa, pb, sums]| {
        let pa = aligned(pa, mc.next_multiple_of(16) * kc);
        let pb = aligned(pb, nc.next_multiple_of(16) * kc);
        let sums = aligned(sums, if C::NARROW { mc * nc } else { 0 });
        for i in (0..m).step_by(MC) {
            let end = m.min(i + MC);
            for (j, p) in (0..n).step_by(most_n).flat_map(|j| (0..k).step_by(most_k).map(move |p| (j, p))) {
                let (kc, nc) = (most_k.min(k - p), most_n.min(n - j));
                // SAFETY: blocks of the caller's windows; there is room for the largest, and for the sums of
                // a block of C.
                unsafe {
                    let right = I::right(pb, b.from(p, j), kc, nc);
                    for first in (i..end).step_by(I::STRIP) {
                        let rows = I::STRIP.min(end - first);
                        let fresh = j == 0 || k > most_k; // else it was packed for the columns before
                        let left = I::left(pa.add((first - i) * kc), a.from(first, p), rows, kc, fresh);
                        let c = Sums { at: c.at.add(first * c.ld + j), ..c };
                        let to = if C::NARROW {
                            Sums { at: sums.add((first - i) * nc), ld: nc, add: p > 0 }
                        } else {
                            Sums { at: c.at.cast(), ld: c.ld, add: c.add || p > 0 }
                        };
                        I::multiply([rows, nc, kc], to, left, right);
                        if C::NARROW && p + kc == k {
                            finish([rows, nc], to, c);
                        }
                    }
                }
            }
        }
    });
}

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\] for few rows: `sum` receives memory for the left factor and for the sums,
/// `ld` per row, which it writes.
///
/// # Safety
/// C is valid.
pub(in crate::cpu) unsafe fn few<C: Scalar<Wide = f32>>(
    [m, n]: [usize; 2],
    (left, ld): (usize, usize),
    c: Sums<C>,
    sum: impl FnOnce(*mut f32, *mut f32),
) {
    MEMORY.with_borrow_mut(|[pa, _, sums]| {
        let at = aligned(sums, m * ld);
        sum(aligned(pa, left), at);
        // SAFETY: the caller's, and sums that were written.
        unsafe { finish([m, n], Sums { at, ld, add: false }, c) };
    });
}

/// C (+)= sums, which are rounded once if C is bf16.
///
/// # Safety
/// Both are valid and do not overlap.
unsafe fn finish<C: Scalar<Wide = f32>>([m, n]: [usize; 2], sums: Sums<f32>, c: Sums<C>) {
    widest(
        #[inline(always)]
        || {
            for i in 0..m {
                // SAFETY: rows of the caller's.
                unsafe {
                    let sums = from_raw_parts(sums.at.add(i * sums.ld), n);
                    for (to, &sum) in from_raw_parts_mut(c.at.add(i * c.ld), n).iter_mut().zip(sums) {
                        *to = C::narrow(if c.add { to.widen() + sum } else { sum });
                    }
                }
            }
        },
    );
}
