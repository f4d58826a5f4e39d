//! Gradients of weights: `Xᵀ·dY`, in the orientation in which a weight is cut.
use crate::handles::split::{Split, same};
use crate::handles::weight::{ColumnWeight, RowWeight, WholeWeight};
use crate::param::placement::{Cuts, Section};
use crate::tensors::{count_product, filled, product};
use crate::{Param, Result};
use comm::Group;
use kernels::{Kernels, Write};
use tensor::{Category, Device, Scalar, Tensor, View, ViewMut};

/// `dW[I,O_t] += X[B,I]ᵀ · dY[B,O_t]`.
///
/// # Errors
/// If `W` has tiles and ranks do not meet.
pub fn columns_gradient<D: Kernels>(w: &mut ColumnWeight<D>, x: &Tensor<D>, dy: &Split<D>) -> Result<()> {
    linear_gradient(w.param(), x.view(), dy.share().view())
}

/// `dW[I_t,O] += X[B,I_t]ᵀ · dY[B,O]`.
///
/// # Errors
/// If `W` has tiles and ranks do not meet.
pub fn rows_gradient<D: Kernels>(w: &mut RowWeight<D>, x: &Split<D>, dy: &Tensor<D>) -> Result<()> {
    linear_gradient(w.param(), x.share().view(), dy.view())
}

/// `dW[I,O] += X[B,I]ᵀ · dY[B,O]`, for a weight that is not cut.
pub fn whole_gradient<D: Kernels>(w: &mut WholeWeight<D>, x: &Tensor<D>, dy: &Tensor<D>) {
    weight_gradient(w.param(), x.view(), dy.view());
}

/// `Y[B,O] = X[B,I] · W[I,O]`, for a weight that is not cut.
#[must_use]
pub fn whole_matmul<D: Kernels>(x: &Tensor<D>, w: &Tensor<D>) -> Tensor<D> {
    let mut y = x.along(w.cols());
    product(x.device(), y.view_mut(), x.view(), w.view(), Write::Set);
    y
}

/// `dX[B,I] = dY[B,O] · W[I,O]ᵀ`, for a weight that is not cut.
#[must_use]
pub fn whole_input_gradient<D: Kernels>(dy: &Tensor<D>, w: &Tensor<D>) -> Tensor<D> {
    let mut dx = dy.along(w.rows());
    product(dy.device(), dx.view_mut(), dy.view(), w.view().t(), Write::Set);
    dx
}

/// `dW[I_t,O] += Σ_t X[B,I]ᵀ · dY[B,O_t]`, each term at its own columns: the gradient of
/// [`RowWeight::gathered`]. A reduce-scatter of `I·O` elements.
///
/// # Errors
/// If a collective fails, the axes differ, or the ranks do not divide a section.
pub fn gathered_gradient<D: Kernels>(
    w: &mut RowWeight<D>,
    group: &Group<D::Place>,
    sections: &[Section],
    (x, dy): (&Tensor<D>, &Split<D>),
) -> Result<()> {
    same(w.axis(), dy.axis())?;
    same(w.axis(), group.axis())?;
    let axis = w.axis();
    let device = x.device();
    let param = w.param();
    let [rows, _] = param.local();
    let [inputs, outputs] = param.shape();
    let cuts = Cuts::columns((axis, group), param.name(), sections)?;
    let zero = <D::Wide as Device>::Elem::ZERO;
    let mut sums = filled(device.wide(), Category::Buffers, [group.size() * rows, outputs], zero);
    for (columns, from) in cuts.stretches() {
        let dw = sums.view_mut().take_rows(0, inputs).take_cols(from, columns.len);
        product_gradient(device, dw, x.view().t(), columns.of(dy.share().view()), Write::Set);
    }
    let reduced = group.reduce_scatter(&sums)?;
    param.accumulate(|device, dw, write| match write {
        Write::Set => device.wide().copy(dw, reduced.view()),
        Write::Add => device.wide().add(dw, reduced.view()),
    });
    Ok(())
}

/// dW += Xᵀ · dY, in the orientation of the parameter.
pub(super) fn weight_gradient<D: Kernels>(w: &mut Param<D>, x: View<D>, dy: View<D>) {
    w.accumulate(|device, dw, write| product_gradient(device, dw, x.t(), dy, write));
}

/// dW += Xᵀ · dY, tile by tile if products gather W so.
fn linear_gradient<D: Kernels>(w: &mut Param<D>, x: View<D>, dy: View<D>) -> Result<()> {
    let Some(tiles) = w.tiles().cloned() else {
        weight_gradient(w, x, dy);
        return Ok(());
    };
    let device = w.device().clone();
    for tile in &tiles.all {
        let mut dw = Tensor::empty(device.wide(), Category::Buffers, tiles.local[0], tile.columns.len);
        product_gradient(&device, dw.view_mut(), x.t(), tile.columns.of(dy), Write::Set);
        w.add_tile(&tiles, tile, dw)?;
    }
    Ok(())
}

/// dW (+)= A · B, unrounded.
pub fn product_gradient<D: Kernels>(device: &D, dw: ViewMut<D::Wide>, a: View<D>, b: View<D>, write: Write) {
    count_product(device, [dw.rows(), dw.cols()], &a, &b);
    device.gemm_wide(dw, a, b, write);
}
