//! Blocks of bf16 widened to f32, for the library's product, which runs everywhere.
use super::super::factor::{Factor, Sums};
use super::super::gemm::f32_by_library;
use super::super::simd::widest;
use super::blocks::{Inner, MC};
use tensor::{Bf16, Scalar};

/// Blocks that the library multiplies.
pub(super) struct Library;

impl Inner for Library {
    const SIZE: [usize; 2] = [512, 512];
    const STRIP: usize = MC;
    unsafe fn right(to: *mut f32, b: Factor<Bf16>, k: usize, n: usize) -> Factor<f32> {
        // SAFETY: the caller's.
        unsafe { widened(to, b, [k, n], true) }
    }
    unsafe fn left(to: *mut f32, a: Factor<Bf16>, m: usize, k: usize, fresh: bool) -> Factor<f32> {
        // SAFETY: the caller's.
        unsafe { widened(to, a, [m, k], fresh) }
    }
    unsafe fn multiply(size: [usize; 3], c: Sums<f32>, a: Factor<f32>, b: Factor<f32>) {
        // SAFETY: the caller's.
        unsafe { f32_by_library(size, c, a, b) };
    }
}

/// Widens the block, without gaps: by columns if its columns are contiguous, else by rows.
///
/// # Safety
/// The block is valid, and `to` has room for it.
unsafe fn widened(to: *mut f32, from: Factor<Bf16>, [rows, cols]: [usize; 2], fresh: bool) -> Factor<f32> {
    if from.row == 1 && from.col != 1 {
        // SAFETY: the same block.
        return unsafe { widened(to, from.t(), [cols, rows], fresh) }.t();
    }
    if fresh {
        widest(
            #[inline(always)]
            || {
                for i in 0..rows {
                    // SAFETY: a row of the caller's.
                    unsafe { widen(to.add(i * cols), from.from(i, 0), cols) };
                }
            },
        );
    }
    Factor { at: to, row: cols, col: 1 }
}

/// Widens a row.
///
/// # Safety
/// The row has `cols` columns, and `to` has room for them.
#[inline(always)]
unsafe fn widen(to: *mut f32, from: Factor<Bf16>, cols: usize) {
    // SAFETY: the caller's.
    unsafe {
        if from.col == 1 {
            let row = std::slice::from_raw_parts(from.at, cols);
            let to = std::slice::from_raw_parts_mut(to, cols);
            to.iter_mut().zip(row).for_each(|(to, x)| *to = x.widen());
        } else {
            (0..cols).for_each(|j| *to.add(j) = (*from.from(0, j).at).widen());
        }
    }
}
