//! Factors and sums of a product, as addresses and strides: what its inner loops are given.
use super::matrices::{In, Out};
use crate::Write;
use tensor::Scalar;

pub(super) fn check<S: Scalar>(c: &Out<S>, a: &In<S>, b: &In<S>) {
    let fit = c.rows() == a.rows() && a.cols() == b.rows() && b.cols() == c.cols();
    assert!(fit && c.col_stride() == 1, "a product of matrices that do not fit");
}

/// A strided factor.
#[derive(Clone, Copy)]
pub(super) struct Factor<S> {
    /// Where its first row and column are.
    pub at: *const S,
    pub row: usize,
    pub col: usize,
}

impl<S: Copy> Factor<S> {
    /// The part that begins at this row and column.
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        Self { at: self.at.wrapping_add(row * self.row + col * self.col), ..self }
    }
    pub(super) fn t(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }
}

/// A view as a product reads it.
pub(super) fn factor<S: Scalar>(v: &In<S>) -> Factor<S> {
    Factor { at: v.raw(), row: v.row_stride(), col: v.col_stride() }
}

/// Sums, or where a product goes: where they begin, numbers from row to row, and whether they are added to.
#[derive(Clone, Copy)]
pub(super) struct Sums<S> {
    pub at: *mut S,
    pub ld: usize,
    pub add: bool,
}

/// A window as a product writes it.
pub(super) fn sums<S: Scalar>(c: &Out<S>, write: Write) -> Sums<S> {
    Sums { at: c.raw(), ld: c.row_stride(), add: write == Write::Add }
}

/// So many floats of a vector, from a line's beginning on.
pub(super) fn aligned(memory: &mut Vec<f32>, len: usize) -> *mut f32 {
    if memory.len() < len + 16 {
        memory.resize(len + 16, 0.0);
    }
    let skip = memory.as_ptr().align_offset(64).min(16);
    memory[skip..].as_mut_ptr()
}
