//! Matrix products of experts. Each expert's rows are consecutive, in the experts' order, and are multiplied
//! by its own matrix. No row is padded, and an expert without rows costs nothing.
use crate::handles::split::same;
use crate::handles::weight::ExpertWeight;
use crate::tensors::{count_product, product};
use crate::{Partial, Result, Split, wide_along};
use comm::{Axis, Group};
use kernels::{Heads, Kernels, RowShard, Write};
use std::ops::Range;
use tensor::{Category, Device, Index, Scalar, Tensor, View, ViewMut};

/// Matrices of this rank's experts, one below the other: `W[E_l·D, F_t]`, each cut by columns.
pub struct Matrices<D: Kernels> {
    share: Tensor<D>,
    width: usize, // D
    turned: bool,
    pub(crate) axis: Axis,
}

impl<D: Kernels> Matrices<D> {
    /// Transposes each matrix to `[F_t, D]`, cut by rows.
    #[must_use]
    pub fn t(self) -> Self {
        Self { turned: !self.turned, ..self }
    }
    pub(crate) fn of(&self, expert: usize) -> View<'_, D> {
        let block = self.share.view().take_rows(expert * self.width, self.width);
        if self.turned { block.t() } else { block }
    }
    /// Multiplies each expert's rows of `x` by its matrix.
    fn times(&self, x: &Tensor<D>, counts: &[usize]) -> Tensor<D> {
        let cols = if self.turned { self.width } else { self.share.cols() };
        let mut y = x.along(cols);
        for (expert, rows) in stretches(counts).filter(|(_, rows)| !rows.is_empty()) {
            let y = y.view_mut().take_rows(rows.start, rows.len());
            let x = x.view().take_rows(rows.start, rows.len());
            product(self.share.device(), y, x, self.of(expert), Write::Set);
        }
        y
    }
}

impl<D: Kernels> ExpertWeight<D> {
    /// Returns the matrices of this rank's experts.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn matrices(&self) -> Result<Matrices<D>> {
        Ok(Matrices { share: self.param.value(), width: self.width, turned: false, axis: Axis::Etp })
    }
}

/// Each expert and its range of rows.
pub(crate) fn stretches(counts: &[usize]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut from = 0;
    let stretch = move |(expert, &count): (usize, &usize)| {
        from += count;
        (expert, from - count..from)
    };
    counts.iter().enumerate().map(stretch)
}

/// `X[N,D]` to `Y[N,F_t]`: multiplies expert e's `counts[e]` rows by its matrix.
#[must_use]
pub fn expert_columns<D: Kernels>(x: &Tensor<D>, counts: &[usize], w: &Matrices<D>) -> Split<D> {
    assert!(!w.turned, "matrices that are cut by columns");
    Split::new(w.times(x, counts), w.axis)
}

/// `X[N,F_t]` to a partial sum of `Y[N,D]`: the contracted dimension is split.
///
/// # Errors
/// If the two are split along different axes.
pub fn expert_rows<D: Kernels>(x: &Split<D>, counts: &[usize], w: &Matrices<D>) -> Result<Partial<D>> {
    assert!(w.turned, "matrices that are cut by rows");
    same(x.axis(), w.axis)?;
    Ok(Partial::sum(w.times(x.share(), counts), w.axis))
}

/// `dW_e[D,F_t] += X_e[N_e,D]ᵀ · dY_e[N_e,F_t]` of every expert. The first contribution of an expert without
/// rows is 0.
pub fn expert_gradient<D: Kernels>(w: &mut ExpertWeight<D>, counts: &[usize], x: &Tensor<D>, dy: &Split<D>) {
    let width = w.width;
    w.param().accumulate(|device, mut dw, write| {
        for (expert, rows) in stretches(counts) {
            let block = dw.again().take_rows(expert * width, width);
            if !rows.is_empty() {
                let x = x.view().take_rows(rows.start, rows.len()).t();
                let dy = dy.share().view().take_rows(rows.start, rows.len());
                count_product(device, [block.rows(), block.cols()], &x, &dy);
                device.gemm_wide(block, x, dy, write);
            } else if write == Write::Set {
                device.wide().fill(block, <D::Wide as Device>::Elem::ZERO);
            }
        }
    });
}

/// Gathers the rows of `x` with these numbers, in their order, with the room of `rows`. Numbers beyond the
/// rows of `x` give zeros.
#[must_use]
pub fn rows_of<D: Kernels>(x: &Tensor<D>, rows: &Index<D::Place>) -> Tensor<D> {
    let mut y = Tensor::with_room(x.device(), Category::Activations, [rows.len(), rows.room()], x.cols());
    x.device().embed(y.view_mut(), x.view(), rows, RowShard { first: 0, len: x.rows() });
    y
}

/// Returns a copy of `x`, each row times its factor `by[N,1]`.
#[must_use]
pub fn scaled<D: Kernels>(x: &Tensor<D>, by: &Tensor<D::Wide>) -> Tensor<D> {
    let mut y = x.along(x.cols());
    x.device().copy(y.view_mut(), x.view());
    x.device().scale_rows(y.view_mut(), by.view());
    y
}

/// Returns the dot product of each row of `x` with the same row of `y`, `[N,1]`.
#[must_use]
pub fn dots<D: Kernels>(x: &Tensor<D>, y: &Tensor<D>) -> Tensor<D::Wide> {
    let mut dots = wide_along(x, 1);
    set_dots(x.device(), dots.view_mut(), [x.view(), y.view()]);
    dots
}

/// Sets `to[N,1]` to these dot products.
pub(super) fn set_dots<D: Kernels>(device: &D, to: ViewMut<D::Wide>, [x, y]: [View<D>; 2]) {
    device.attention_delta(Heads::new(1, 1, x.cols()), to, x, y);
}

impl<D: Kernels> Split<D> {
    /// Multiplies each row by its factor `by[N,1]`.
    #[must_use]
    pub fn scaled(mut self, by: &Tensor<D::Wide>) -> Self {
        self.device().clone().scale_rows(self.share_mut().view_mut(), by.view());
        self
    }
    /// Returns the dot product of each row with the same row of `other`, `[N,1]`: a partial sum over the
    /// ranks that split the features.
    ///
    /// # Errors
    /// If the two are split along different axes.
    pub fn dots(&self, other: &Self) -> Result<Partial<D::Wide>> {
        same(self.axis(), other.axis())?;
        Ok(Partial::sum(dots(self.share(), other.share()), self.axis()))
    }
}

impl<D: Kernels> Partial<D> {
    /// Returns this rank's rows of the sum; rank `i` has `counts[i]` rows.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn reduce_scatter_v(self, group: &Group<D::Place>, counts: &[usize]) -> Result<Tensor<D>> {
        Ok(group.reduce_scatter_v(&self.addend(group)?, counts)?)
    }
}
