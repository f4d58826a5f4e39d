//! A right factor that is packed once and used in many products: in panels of columns, as the kernels read
//! it.
use super::matrices::{In, Out};
use super::scalar::CpuScalar;
use crate::Write;
use std::ops::Range;
use tensor::{Category, Cpu, Scalar, Tensor, count};

/// A right factor `B[K,N]`, unpacked or in panels. A window of it is one again.
pub(super) enum Right<'a, S: Scalar> {
    Plain(In<'a, S>),
    Panels(Panels<'a, S>),
}

impl<'a, S: CpuScalar> Right<'a, S> {
    /// Packs B into panels if it will be used `often` enough to pay for them.
    #[inline(always)]
    pub(super) fn new(memory: &'a mut Out<S>, b: In<'a, S>, often: bool) -> Self {
        if often { Right::Panels(Panels::lay(memory, b)) } else { Right::Plain(b) }
    }
    /// Returns columns `from..from + n`.
    #[inline(always)]
    pub(super) fn take_cols(&self, from: usize, n: usize) -> Self {
        match self {
            Right::Plain(b) => Right::Plain(b.take_cols(from, n)),
            Right::Panels(b) => Right::Panels(b.take_cols(from, n)),
        }
    }
    /// Returns rows `from..from + n`.
    #[inline(always)]
    pub(super) fn take_rows(&self, from: usize, n: usize) -> Self {
        match self {
            Right::Plain(b) => Right::Plain(b.take_rows(from, n)),
            Right::Panels(b) => Right::Panels(b.take_rows(from, n)),
        }
    }
    /// C (+)= A·B.
    #[inline(always)]
    pub(super) fn times(&self, c: Out<S>, a: In<S>, write: Write) {
        match self {
            Right::Plain(b) => S::gemm(c, a, *b, write),
            Right::Panels(b) => S::gemm_panels(c, a, b, write),
        }
    }
}

/// Some rows and columns of a factor in panels, which lie one after the other. Each panel has `height` rows
/// of `width` elements.
pub struct Panels<'a, S: Scalar> {
    at: In<'a, S>,
    height: usize,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl<'a, S: CpuScalar> Panels<'a, S> {
    /// Largest number of elements that the panels of `B[k,n]` take.
    pub(super) fn len(k: usize, n: usize) -> usize {
        count::product("the elements of a factor", &[k, n.next_multiple_of(S::PANEL)])
    }
    /// Shape `[rows, width]` of all panels of `B[k,n]` together.
    fn shape(k: usize, n: usize) -> [usize; 2] {
        let width = S::panel(n);
        [n.div_ceil(width) * k, width]
    }
    /// Packs b into memory of [`Panels::len`] elements.
    #[inline(always)]
    fn lay(memory: &'a mut Out<S>, b: In<S>) -> Self {
        let [rows, width] = Self::shape(b.rows(), b.cols());
        S::pack(memory.again().take_cols(0, rows * width).reshape(rows, width), b);
        Self::of(memory.read().take_cols(0, rows * width).reshape(rows, width), [b.rows(), b.cols()])
    }
    fn of(at: In<'a, S>, [k, n]: [usize; 2]) -> Self {
        Self { at, height: k, rows: 0..k, cols: 0..n }
    }
    fn take_cols(&self, from: usize, n: usize) -> Self {
        Self { cols: within(&self.cols, from, n), rows: self.rows.clone(), ..*self }
    }
    fn take_rows(&self, from: usize, n: usize) -> Self {
        Self { rows: within(&self.rows, from, n), cols: self.cols.clone(), ..*self }
    }
    /// Number of rows and columns of the window.
    pub(super) fn size(&self) -> [usize; 2] {
        [self.rows.len(), self.cols.len()]
    }
    /// Returns columns `cols` of panel `i`.
    fn panel(&self, i: usize, cols: Range<usize>) -> In<'a, S> {
        let rows = self.at.take_rows(i * self.height + self.rows.start, self.rows.len());
        rows.take_cols(cols.start, cols.len())
    }
    /// Returns the first panel's rows and the elements from panel to panel, if the window begins with a
    /// panel.
    pub(super) fn first(&self) -> Option<(In<'a, S>, usize)> {
        let (width, start) = (self.at.cols(), self.cols.start);
        let first = || (self.panel(start / width, 0..width), self.height * width);
        (start.is_multiple_of(width) && !self.cols.is_empty()).then(first)
    }
}

/// Returns `from..from + n`, counted from the start of a window.
fn within(window: &Range<usize>, from: usize, n: usize) -> Range<usize> {
    assert!(from + n <= window.len(), "cannot take {n} from {from} on of {}", window.len());
    window.start + from..window.start + from + n
}

/// Definition of `S::pack`: a panel's rows are the factor's; columns of the last panel beyond the factor are
/// zero.
#[inline(always)]
pub(super) fn pack<S: CpuScalar>(mut to: Out<S>, b: In<S>) {
    let width = to.cols();
    for row in 0..to.rows() {
        let (panel, k) = (row / b.rows(), row % b.rows());
        for (j, to) in to.row(row).iter_mut().enumerate() {
            let column = panel * width + j;
            *to = if column < b.cols() { b.at(k, column) } else { S::ZERO };
        }
    }
}

/// C (+)= A·B, panel by panel.
#[inline(always)]
pub(super) fn product<S: CpuScalar>(mut c: Out<S>, a: In<S>, b: &Panels<S>, write: Write) {
    let width = b.at.cols();
    let mut done = 0;
    while done < b.cols.len() {
        let column = b.cols.start + done;
        let n = (width - column % width).min(b.cols.len() - done);
        let panel = b.panel(column / width, column % width..column % width + n);
        S::gemm(c.again().take_cols(done, n), a, panel, write);
        done += n;
    }
}

/// A factor in panels, in memory of its own.
pub struct Packed<S: Scalar> {
    panels: Tensor<Cpu<S>>,
    size: [usize; 2],
}

impl<S: CpuScalar> Packed<S> {
    pub(super) fn empty(cpu: &Cpu<S>, size: [usize; 2]) -> Self {
        let [rows, width] = Panels::<S>::shape(size[0], size[1]);
        Self { panels: Tensor::empty(cpu, Category::Buffers, rows, width), size }
    }
    pub(super) fn memory(&mut self) -> Out<'_, S> {
        self.panels.view_mut()
    }
    pub(super) fn panels(&self) -> Panels<'_, S> {
        Panels::of(self.panels.view(), self.size)
    }
    pub(super) fn len(k: usize, n: usize) -> usize {
        Panels::<S>::shape(k, n).into_iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Category, Dual, F61, Key, Tensor};

    type Matrix<S> = Tensor<Cpu<S>>;

    fn matrix<S: Scalar>(rows: usize, cols: usize, f: impl FnMut(usize) -> S) -> Matrix<S> {
        Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, f)
    }
    fn filled<S: Scalar>(rows: usize, cols: usize, value: S) -> Matrix<S> {
        matrix(rows, cols, |_| value)
    }

    /// All windows that panels are asked for, on integers, which every number sums exactly. Kills: a panel's
    /// height for the window's rows, columns or rows of another window, padding that counts, a lost last
    /// panel.
    fn equals_the_product<S: CpuScalar>() {
        let integers = |salt: usize, rows: usize, cols: usize| -> Matrix<S> {
            matrix(rows, cols, |i| S::from_f64(((i * 7919 + salt * 31) % 7) as f64 - 3.0))
        };
        for (m, n, k, turned) in
            [(1, 70, 5, false), (13, 64, 40, true), (30, 33, 600, true), (5, 2, 1, false), (9, 300, 7, false)]
        {
            let (a, b) = (integers(1, m, k), if turned { integers(2, n, k) } else { integers(2, k, n) });
            let b = if turned { b.view().t() } else { b.view() };
            let mut memory = filled(1, Panels::<S>::len(k, n), S::NEG_INF);
            let mut memory = memory.view_mut();
            let laid = Right::new(&mut memory, b, true);
            let starts = [0, S::PANEL, S::PANEL + 1, n / 2];
            for (col, row) in starts.into_iter().filter(|&c| c < n).flat_map(|c| [0, k / 3].map(|r| (c, r))) {
                let a = a.view().take_cols(row, k - row);
                for write in [Write::Set, Write::Add] {
                    let [mut seen, mut wanted] = [(); 2].map(|()| integers(3, m, n - col));
                    laid.take_cols(col, n - col).take_rows(row, k - row).times(seen.view_mut(), a, write);
                    S::gemm(wanted.view_mut(), a, b.take_cols(col, n - col).take_rows(row, k - row), write);
                    assert_eq!(seen.read(), wanted.read(), "{} {m}x{n}x{k} from {row}, {col}", S::NAME);
                }
            }
        }
    }

    #[test]
    fn products_with_panels_equal_products() {
        let _key = Key(3).enter();
        equals_the_product::<f32>();
        equals_the_product::<f64>();
        equals_the_product::<F61>();
        equals_the_product::<Dual<F61>>();
    }

    #[test]
    #[should_panic(expected = "3 from 68 on of 70")]
    fn a_window_lies_inside() {
        let (b, mut memory) = (filled(5, 70, 1.0f32), filled(1, Panels::<f32>::len(5, 70), 0.0));
        let mut memory = memory.view_mut();
        let _ = Right::new(&mut memory, b.view(), true).take_cols(68, 3);
    }
}
