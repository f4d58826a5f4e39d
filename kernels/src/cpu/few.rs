//! Few rows times a large matrix, on any machine: each element of the matrix is read from memory once, and
//! widened then.
use super::factor::{Factor, Sums};
use super::simd::dot;
use std::array::from_fn;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use tensor::Scalar;

/// Number of places from which rows are read at a time: with this number, memory gives the most bandwidth.
const STREAMS: usize = 8;

/// Method of adding up rows.
pub(super) trait AddRows<S: Scalar> {
    /// y += Σ x·row, of n elements.
    ///
    /// # Safety
    /// `y` and the rows have n elements, `y` overlaps no row, and the CPU has the features that the method
    /// needs.
    unsafe fn add_rows<const N: usize>(y: *mut S::Wide, x: [S; N], rows: [*const S; N], n: usize);
}

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], where B is row-major.
///
/// # Safety
/// The windows are valid, C overlaps neither factor, and the CPU has the features that `W` needs.
#[inline(always)]
pub(super) unsafe fn by_rows<S: Scalar, W: AddRows<S>>(
    [m, n, k]: [usize; 3],
    c: Sums<S::Wide>,
    a: Factor<S>,
    b: Factor<S>,
) {
    let apart = k / STREAMS;
    // SAFETY: rows and columns inside the caller's windows.
    unsafe {
        for i in 0..if c.add { 0 } else { m } {
            from_raw_parts_mut(c.at.add(i * c.ld), n).fill(S::Wide::ZERO);
        }
        for p in 0..apart {
            let places: [usize; STREAMS] = from_fn(|s| p + s * apart);
            for i in 0..m {
                let x = places.map(|p| *a.from(i, p).at);
                W::add_rows(c.at.add(i * c.ld), x, places.map(|p| b.from(p, 0).at), n);
            }
        }
        for p in apart * STREAMS..k {
            for i in 0..m {
                W::add_rows(c.at.add(i * c.ld), [*a.from(i, p).at], [b.from(p, 0).at], n);
            }
        }
    }
}

/// Adds rows with the vectors that the caller is compiled for.
pub(super) struct Plain;

impl<S: Scalar> AddRows<S> for Plain {
    #[inline(always)]
    unsafe fn add_rows<const N: usize>(y: *mut S::Wide, x: [S; N], rows: [*const S; N], n: usize) {
        // SAFETY: the caller's.
        let (y, rows) = unsafe { (from_raw_parts_mut(y, n), rows.map(|row| from_raw_parts(row, n))) };
        let x = x.map(S::widen);
        for (j, y) in y.iter_mut().enumerate() {
            let mut sum = *y;
            for s in 0..N {
                sum += x[s] * rows[s][j].widen();
            }
            *y = sum;
        }
    }
}

/// C\[m,n\] (+)= A\[m,k\]·B\[k,n\], where columns of B, and rows of A, are contiguous in memory.
///
/// # Safety
/// The windows are valid, and C overlaps neither factor.
#[inline(always)]
pub(super) unsafe fn by_columns<S: Scalar>(
    [m, n, k]: [usize; 3],
    c: Sums<S::Wide>,
    a: Factor<S>,
    b: Factor<S>,
) {
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        // SAFETY: rows and columns inside the caller's windows.
        unsafe {
            let sum = &mut *c.at.add(i * c.ld + j);
            let before = if c.add { *sum } else { S::Wide::ZERO };
            *sum = before + dot(from_raw_parts(a.from(i, 0).at, k), from_raw_parts(b.from(0, j).at, k));
        }
    }
}
