//! Operations on what ranks hold: shapes checked, FLOPs counted, results allocated, the same on every device.
//! Here alone is decided which operation may look inside a share, and what its result is: the trusted floor.
mod activation;
mod attention;
mod bias;
mod dropout;
#[cfg(test)]
mod exhibits;
mod experts;
mod handles;
mod heads;
mod loss;
mod norm;
mod router;
mod stream;
mod tokens;

pub use activation::{
    activate, activate_backward, activate_stream, activate_stream_backward, swiglu, swiglu_backward,
};
pub use attention::{
    attention, attention_backward, attention_to, attention_to_backward, cross_attention,
    cross_attention_backward, rotate,
};
pub use bias::{add_bias, add_columns, bias_gradient, columns_bias_gradient};
pub use dropout::dropout;
pub use experts::{Matrices, dots, expert_columns, expert_gradient, expert_rows, rows_of, scaled};
pub(crate) use handles::same;
pub use handles::{Columns, Partial, Rows, Split, matmul, plus};
pub use heads::{norm_heads, norm_heads_backward};
pub use loss::{
    cross_entropy_backward, embed, embed_backward, mean_square, position_rows, position_rows_backward,
    split_cross_entropy, top_k,
};
pub use norm::{norm, norm_backward};
pub use router::{
    RouterLoss, choose, gates, logits, pooled, router_backward, router_gradient, router_input_gradient,
};
pub use stream::{Coming, Region, Stream, join};
use tokens::scatter_tokens;
pub use tokens::{gather_keys, gather_last, gather_tokens, last_rows};

use crate::param::placement::{Cuts, Section};
use crate::param::weight::{ColumnWeight, RowWeight};
use crate::{Param, Result};
use comm::Group;
use kernels::{Kernels, Write};
use tensor::{Category, Device, Scalar, Tensor, View, ViewMut};

/// C (+)= A·B.
fn product<D: Kernels>(device: &D, c: ViewMut<D>, a: View<D>, b: View<D>, write: Write) {
    count_product(device, [c.rows(), c.cols()], &a, &b);
    device.gemm(c, a, b, write);
}

/// Checks that C = A·B has this shape, and counts its FLOPs.
fn count_product<D: Kernels>(device: &D, c: [usize; 2], a: &View<D>, b: &View<D>) {
    let [a, b] = [[a.rows(), a.cols()], [b.rows(), b.cols()]];
    assert!([a[0], b[1]] == c && a[1] == b[0], "a product {a:?} · {b:?} is no {c:?}");
    device.meter().work(&[2, c[0], c[1], a[1]]);
}

/// A gradient as a sum to add to.
fn sum_of<'a, D: Kernels>(
    device: &D,
    mut gradient: ViewMut<'a, D::Wide>,
    write: Write,
) -> ViewMut<'a, D::Wide> {
    if write == Write::Set {
        device.wide().fill(gradient.again(), <D::Wide as Device>::Elem::ZERO);
    }
    gradient
}

/// An activation of wide numbers, of as many rows as one of any, with room for as many.
#[must_use]
pub fn wide_along<D: Kernels>(x: &Tensor<D>, cols: usize) -> Tensor<D::Wide> {
    Tensor::with_room(x.device().wide(), Category::Activations, x.rooms(), cols)
}

/// A matrix of one value.
#[must_use]
pub fn filled<D: Kernels>(
    device: &D,
    category: Category,
    [rows, cols]: [usize; 2],
    value: D::Elem,
) -> Tensor<D> {
    let mut t = Tensor::empty(device, category, rows, cols);
    device.fill(t.view_mut(), value);
    t
}

/// `dW[I,O_t] += X[B,I]ᵀ · dY[B,O_t]`.
pub fn columns_gradient<D: Kernels>(w: &mut ColumnWeight<D>, x: &Tensor<D>, dy: &Split<D>) {
    weight_gradient(w.param(), x.view(), dy.share().view());
}

/// `dW[I_t,O] += X[B,I_t]ᵀ · dY[B,O]`.
pub fn rows_gradient<D: Kernels>(w: &mut RowWeight<D>, x: &Split<D>, dy: &Tensor<D>) {
    weight_gradient(w.param(), x.share().view(), dy.view());
}

/// `dW[I_t,O] += Σ_t X[B,I]ᵀ · dY[B,O_t]`, each at its columns: the gradient of [`RowWeight::gathered`]. A reduce-scatter of
/// `I·O` elements.
///
/// # Errors
/// If ranks do not meet, are those of another axis, or do not divide a section.
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
fn weight_gradient<D: Kernels>(w: &mut Param<D>, x: View<D>, dy: View<D>) {
    w.accumulate(|device, dw, write| {
        count_product(device, [dw.rows(), dw.cols()], &x.t(), &dy);
        device.gemm_wide(dw, x.t(), dy, write);
    });
}
