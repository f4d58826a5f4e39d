//! Few rows times a large matrix, on any machine: each of its numbers is read from memory once, and widened as it comes.
use super::gemm::Factor;
use super::simd::dot;
use std::array::from_fn;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use tensor::Scalar;

/// From how many places rows are read at a time, which is what memory gives the most to.
const STREAMS: usize = 4;

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], where rows of B are rows in memory; C has `ld` numbers from row to row.
///
/// # Safety
/// The windows are valid, and C overlaps neither factor.
#[inline(always)]
pub(super) unsafe fn by_rows<S: Scalar>(
    [m, n, k]: [usize; 3],
    c: *mut S::Wide,
    ld: usize,
    a: Factor<S>,
    b: Factor<S>,
    add: bool,
) {
    let apart = k / STREAMS;
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        let row = |i: usize| from_raw_parts_mut(c.add(i * ld), n);
        if !add {
            (0..m).for_each(|i| row(i).fill(S::Wide::ZERO));
        }
        for p in 0..apart {
            let rows: [&[S]; STREAMS] = from_fn(|s| from_raw_parts(b.from(p + s * apart, 0).at, n));
            for i in 0..m {
                add_rows(row(i), from_fn(|s| *a.from(i, p + s * apart).at), rows);
            }
        }
        for p in apart * STREAMS..k {
            for i in 0..m {
                add_rows(row(i), [*a.from(i, p).at], [from_raw_parts(b.from(p, 0).at, n)]);
            }
        }
    }
}

/// y += Σ x·row.
#[inline(always)]
fn add_rows<S: Scalar, const N: usize>(y: &mut [S::Wide], x: [S; N], rows: [&[S]; N]) {
    let x = x.map(S::widen);
    for (j, y) in y.iter_mut().enumerate() {
        let mut sum = *y;
        for s in 0..N {
            sum += x[s] * rows[s][j].widen();
        }
        *y = sum;
    }
}

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], where columns of B, and rows of A, are rows in memory; C has `ld` numbers from row to row.
///
/// # Safety
/// The windows are valid, and C overlaps neither factor.
#[inline(always)]
pub(super) unsafe fn by_columns<S: Scalar>(
    [m, n, k]: [usize; 3],
    c: *mut S::Wide,
    ld: usize,
    a: Factor<S>,
    b: Factor<S>,
    add: bool,
) {
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        // SAFETY: rows and columns inside the caller's windows.
        unsafe {
            let c = &mut *c.add(i * ld + j);
            let before = if add { *c } else { S::Wide::ZERO };
            *c = before + dot(from_raw_parts(a.from(i, 0).at, k), from_raw_parts(b.from(0, j).at, k));
        }
    }
}
