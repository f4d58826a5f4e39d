//! Views: strided windows into matrices. Only tensors create them, so each lies inside a borrowed tensor.
use crate::device::offset;
use crate::{Buffer, Device, Ptr};
use std::marker::PhantomData;

/// A strided window into a tensor, borrowed as `B`.
pub struct Strided<D: Device, B> {
    ptr: Ptr<D>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    borrow: PhantomData<B>,
}

/// A window into a tensor, to read.
pub type View<'a, D> = Strided<D, &'a Buffer<D>>;
/// A window into a tensor, to write: the only one over its elements.
pub type ViewMut<'a, D> = Strided<D, &'a mut Buffer<D>>;

impl<D: Device, B> Strided<D, B> {
    /// Window over a whole row-major matrix. Only a tensor, which knows its buffer's length, may create one.
    pub(crate) fn whole(ptr: Ptr<D>, rows: usize, cols: usize) -> Self {
        Self { ptr, rows, cols, row_stride: cols, col_stride: 1, borrow: PhantomData }
    }
    /// Address of the window's first element.
    #[inline(always)]
    pub fn ptr(&self) -> Ptr<D> {
        self.ptr
    }
    /// Number of rows.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    #[inline(always)]
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    #[inline(always)]
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Elements from one column to the next.
    #[inline(always)]
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }
    /// True if the `rows · cols` elements lie in memory without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.col_stride == 1 && (self.rows <= 1 || self.row_stride == self.cols)
    }
    /// Returns columns `from..from + n`.
    ///
    /// # Panics
    /// If the window does not have all of them.
    #[must_use]
    pub fn take_cols(self, from: usize, n: usize) -> Self {
        let there = from <= self.cols && n <= self.cols - from; // no sum that could wrap
        assert!(there, "{n} columns from {from} on of {}", self.cols);
        Self { ptr: offset::<D>(self.ptr, from * self.col_stride), cols: n, ..self }
    }
    /// Returns rows `from..from + n`.
    #[must_use]
    pub fn take_rows(self, from: usize, n: usize) -> Self {
        assert!(from <= self.rows && n <= self.rows - from, "{n} rows from {from} on of {}", self.rows);
        Self { ptr: offset::<D>(self.ptr, from * self.row_stride), rows: n, ..self }
    }
    /// Returns the transpose, without moving elements.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
    /// Returns the same elements as a matrix of this shape.
    #[must_use]
    pub fn reshape(self, rows: usize, cols: usize) -> Self {
        let fits = rows.checked_mul(cols) == Some(self.rows * self.cols);
        assert!(self.is_contiguous() && fits, "cannot reshape to {rows}x{cols}: gaps or another size");
        Self { rows, cols, row_stride: cols, ..self }
    }
}

impl<D: Device> Clone for View<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for View<'_, D> {}

impl<'a, D: Device> ViewMut<'a, D> {
    /// Reborrows the window for a shorter time.
    pub fn again(&mut self) -> ViewMut<'_, D> {
        ViewMut { borrow: PhantomData, ..*self }
    }
    /// Returns the window for reading; this one cannot be used meanwhile.
    pub fn read(&self) -> View<'_, D> {
        View {
            ptr: self.ptr,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            borrow: PhantomData,
        }
    }
    /// Splits the window into two disjoint ones: columns before `at`, and columns from `at` on.
    ///
    /// # Panics
    /// If there are fewer columns than `at`.
    pub fn split_cols(self, at: usize) -> (ViewMut<'a, D>, ViewMut<'a, D>) {
        assert!(at <= self.cols, "cannot split at column {at}; the window has {} columns", self.cols);
        let right =
            ViewMut { ptr: offset::<D>(self.ptr, at * self.col_stride), cols: self.cols - at, ..self };
        (ViewMut { cols: at, ..self }, right)
    }
}
