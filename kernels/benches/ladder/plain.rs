//! Rungs that run on any machine: they name no instruction.
use kernels::widest;
use tensor::{Cpu, View, ViewMut};

type V<'a> = View<'a, Cpu<f32>>;
type M<'a> = ViewMut<'a, Cpu<f32>>;

/// Rows of B in a block: 256 KiB of 1024 columns.
const DEEP: usize = 64;

/// The definition: each element of C is a sum over k.
pub(crate) fn definition(mut c: M, a: V, b: V) {
    for i in 0..c.rows() {
        for j in 0..c.cols() {
            let mut sum = 0.0;
            for k in 0..a.cols() {
                sum += a.at(i, k) * b.at(k, j);
            }
            c.set(i, j, sum);
        }
    }
}

/// Computes the same sums, a row of C at a time: adjacent elements are used together.
#[inline(always)]
pub(crate) fn rows(mut c: M, a: V, b: V) {
    for i in 0..c.rows() {
        c.row(i).fill(0.0);
        for k in 0..a.cols() {
            add(c.row(i), a.at(i, k), b.row(k));
        }
    }
}

/// y += x·row.
#[inline(always)]
fn add(y: &mut [f32], x: f32, row: &[f32]) {
    for (y, b) in y.iter_mut().zip(row) {
        *y += x * b;
    }
}

/// Does the same, with the widest vectors there are.
pub(crate) fn wide_rows(c: M, a: V, b: V) {
    widest(
        #[inline(always)]
        || rows(c, a, b),
    );
}

/// Does the same, by blocks of rows of B, which stay in L2 while all rows of C are processed.
pub(crate) fn blocks(mut c: M, a: V, b: V) {
    widest(
        #[inline(always)]
        || {
            for i in 0..c.rows() {
                c.row(i).fill(0.0);
            }
            for first in (0..a.cols()).step_by(DEEP) {
                for i in 0..c.rows() {
                    for k in first..a.cols().min(first + DEEP) {
                        add(c.row(i), a.at(i, k), b.row(k));
                    }
                }
            }
        },
    );
}
