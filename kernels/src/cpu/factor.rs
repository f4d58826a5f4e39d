//! Factors and sums of a product, as addresses and strides: the arguments of its inner loops.
use super::matrices::{In, Out};
use crate::Write;
use tensor::Scalar;

pub(super) fn check<S: Scalar>(c: &Out<S>, a: &In<S>, b: &In<S>) {
    let fit = c.rows() == a.rows() && a.cols() == b.rows() && b.cols() == c.cols();
    assert!(fit && c.col_stride() == 1, "the shapes of a product do not fit");
}

/// A strided factor.
#[derive(Clone, Copy)]
pub(super) struct Factor<S> {
    /// Address of its first element.
    pub at: *const S,
    pub row: usize,
    pub col: usize,
}

impl<S: Copy> Factor<S> {
    /// Returns the part that begins at this row and column.
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        Self { at: self.at.wrapping_add(row * self.row + col * self.col), ..self }
    }
    pub(super) fn t(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }
}

/// Converts a view to the factor of a product.
pub(super) fn factor<S: Scalar>(v: &In<S>) -> Factor<S> {
    Factor { at: v.raw(), row: v.row_stride(), col: v.col_stride() }
}

/// Sums, or the result of a product: their address, elements from row to row, and whether they are added to.
#[derive(Clone, Copy)]
pub(super) struct Sums<S> {
    pub at: *mut S,
    pub ld: usize,
    pub add: bool,
}

/// Converts a window to the result of a product.
pub(super) fn sums<S: Scalar>(c: &Out<S>, write: Write) -> Sums<S> {
    Sums { at: c.raw(), ld: c.row_stride(), add: write == Write::Add }
}

/// Returns the address of `len` floats of a vector, aligned to a cache line.
pub(super) fn aligned(memory: &mut Vec<f32>, len: usize) -> *mut f32 {
    if memory.len() < len + 16 {
        memory.resize(len + 16, 0.0);
    }
    let skip = memory.as_ptr().align_offset(64).min(16);
    memory[skip..].as_mut_ptr()
}
