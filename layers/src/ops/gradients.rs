//! Gradients of weights: `Xᵀ·dY`, in the orientation in which a weight is cut.
use super::handles::{Split, same};
use super::tensors::{count_product, filled};
use crate::param::placement::{Cuts, Section};
use crate::param::weight::{ColumnWeight, RowWeight};
use crate::{Param, Result};
use comm::Group;
use kernels::{Kernels, Write};
use tensor::{Category, Device, Scalar, Tensor, View};

/// `dW[I,O_t] += X[B,I]ᵀ · dY[B,O_t]`.
pub fn columns_gradient<D: Kernels>(w: &mut ColumnWeight<D>, x: &Tensor<D>, dy: &Split<D>) {
    weight_gradient(w.param(), x.view(), dy.share().view());
}

/// `dW[I_t,O] += X[B,I_t]ᵀ · dY[B,O]`.
pub fn rows_gradient<D: Kernels>(w: &mut RowWeight<D>, x: &Split<D>, dy: &Tensor<D>) {
    weight_gradient(w.param(), x.share().view(), dy.view());
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
    let (axis, device, wide) = (w.axis(), x.device(), x.device().wide());
    let param = w.param();
    let ([rows, _], [inputs, outputs]) = (param.local(), param.shape());
    let cuts = Cuts::columns((axis, group), param.name(), sections)?;
    let zero = <D::Wide as Device>::Elem::ZERO;
    let mut all = filled(wide, Category::Buffers, [group.size() * rows, outputs], zero);
    for (columns, from) in cuts.stretches() {
        let dw = all.view_mut().take_rows(0, inputs).take_cols(from, columns.len);
        let (x, dy) = (x.view().t(), columns.of(dy.share().view()));
        count_product(device, [dw.rows(), dw.cols()], &x, &dy);
        device.gemm_wide(dw, x, dy, Write::Set);
    }
    let own = group.reduce_scatter(&all)?;
    param.accumulate(|device, dw, write| match write {
        Write::Set => device.wide().copy(dw, own.view()),
        Write::Add => device.wide().add(dw, own.view()),
    });
    Ok(())
}

/// dW += Xᵀ · dY, in the orientation of the parameter.
pub(super) fn weight_gradient<D: Kernels>(w: &mut Param<D>, x: View<D>, dy: View<D>) {
    w.accumulate(|device, dw, write| {
        count_product(device, [dw.rows(), dw.cols()], &x.t(), &dy);
        device.gemm_wide(dw, x.t(), dy, write);
    });
}
