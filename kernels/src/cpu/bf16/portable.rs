//! Blocks of a float of 16 bits widened to f32, for the library's product, which runs everywhere.
use super::super::factor::{Factor, Sums, factor, sums};
use super::super::few;
use super::super::gemm::f32_by_library;
use super::super::matrices::{In, Out};
use super::super::simd::widest;
use super::blocks::{self, Inner, MC};
use crate::Write;
use tensor::Scalar;

/// Largest number of rows of products that read the other factor in place.
pub(super) const FEW: usize = 8;

/// Sizes `[m, n, k]` of a product, its result and its factors.
type ProductParts<S, C> = ([usize; 3], Sums<C>, Factor<S>, Factor<S>);

/// Returns the parts of C (+)= A·B. If the sums are empty, there is nothing to multiply, and C is set.
///
/// # Panics
/// If the shapes do not fit, or C's column stride is not 1.
pub(in crate::cpu) fn parts<S: Scalar, C: Scalar>(
    mut c: Out<C>,
    a: In<S>,
    b: In<S>,
    write: Write,
) -> Option<ProductParts<S, C>> {
    let size = [c.rows(), c.cols(), a.cols()];
    assert!(a.rows() == size[0] && b.cols() == size[1] && b.rows() == size[2], "the shapes do not fit");
    assert!(c.col_stride() == 1, "the column stride of C must be 1");
    if size[2] == 0 {
        (0..if write == Write::Set { size[0] } else { 0 }).for_each(|i| c.row(i).fill(C::ZERO));
        return None;
    }
    Some((size, sums(&c, write), factor(&a), factor(&b)))
}

/// C (+)= A·B.
///
/// # Safety
/// The windows are valid, and C overlaps neither factor.
pub(in crate::cpu) unsafe fn product<S: Scalar<Wide = f32>, C: Scalar<Wide = f32>>(
    size: [usize; 3],
    to: Sums<C>,
    a: Factor<S>,
    b: Factor<S>,
) {
    let [m, n, _] = size;
    let rows = b.col == 1;
    // SAFETY: the caller's, and memory of the sizes requested here.
    unsafe {
        if m > FEW || !rows && (b.row != 1 || a.col != 1) {
            return blocks::product::<Library, S, C>(size, to, a, b);
        }
        blocks::few([m, n], (0, n), to, |_, at| {
            let sum = if rows { few::by_rows::<_, few::Plain> } else { few::by_columns };
            widest(
                #[inline(always)]
                || sum(size, Sums { at, ld: n, add: false }, a, b),
            );
        });
    }
}

/// Blocks that the library multiplies.
pub(super) struct Library;

impl<S: Scalar<Wide = f32>> Inner<S> for Library {
    const SIZE: [usize; 2] = [512, 512];
    const STRIP: usize = MC;
    unsafe fn right(to: *mut f32, b: Factor<S>, k: usize, n: usize) -> Factor<f32> {
        // SAFETY: the caller's.
        unsafe { widened(to, b, [k, n], true) }
    }
    unsafe fn left(to: *mut f32, a: Factor<S>, m: usize, k: usize, fresh: bool) -> Factor<f32> {
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
unsafe fn widened<S: Scalar<Wide = f32>>(
    to: *mut f32,
    from: Factor<S>,
    [rows, cols]: [usize; 2],
    fresh: bool,
) -> Factor<f32> {
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
unsafe fn widen<S: Scalar<Wide = f32>>(to: *mut f32, from: Factor<S>, cols: usize) {
    // SAFETY: the caller's.
    unsafe {
        if from.col == 1 {
            let row = std::slice::from_raw_parts(from.at, cols);
            let out = std::slice::from_raw_parts_mut(to, cols);
            out.iter_mut().zip(row).for_each(|(to, x)| *to = x.widen());
        } else {
            (0..cols).for_each(|j| *to.add(j) = (*from.from(0, j).at).widen());
        }
    }
}
