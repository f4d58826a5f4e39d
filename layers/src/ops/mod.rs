//! Operations on what ranks hold: shapes checked, FLOPs counted, results allocated, the same on every device.
//! Here alone is decided which operation may look inside a share, and what its result is: the trusted floor.
mod activation;
mod attention;
mod bias;
mod dropout;
#[cfg(test)]
mod exhibits;
mod handles;
mod heads;
mod loss;
mod norm;
mod stream;

pub use activation::{
    activate, activate_backward, activate_stream, activate_stream_backward, swiglu, swiglu_backward,
};
pub use attention::{
    attention, attention_backward, cross_attention, cross_attention_backward, last_rows, rotate,
};
pub use bias::{add_bias, add_columns, bias_gradient, columns_bias_gradient};
pub use dropout::dropout;
pub use handles::{Columns, Partial, Rows, Split, matmul, plus};
pub use heads::{norm_heads, norm_heads_backward};
pub use loss::{
    cross_entropy_backward, embed, embed_backward, position_rows, position_rows_backward,
    split_cross_entropy, top_k,
};
pub use norm::{layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
pub use stream::{Region, Stream, join};

use crate::Param;
use crate::weight::{ColumnWeight, RowWeight};
use kernels::{Kernels, Write};
use tensor::{Category, Scalar, Tensor, View, ViewMut};

/// C (+)= A·B.
fn product<D: Kernels>(device: &D, c: ViewMut<D>, a: View<D>, b: View<D>, write: Write) {
    let fit = c.rows() == a.rows() && a.cols() == b.rows() && b.cols() == c.cols();
    assert!(
        fit,
        "a product [{}, {}] · [{}, {}] is no [{}, {}]",
        a.rows(),
        a.cols(),
        b.rows(),
        b.cols(),
        c.rows(),
        c.cols()
    );
    device.meter().work(&[2, c.rows(), c.cols(), a.cols()]);
    device.gemm(c, a, b, write);
}

/// A gradient as a sum to add to.
fn sum_of<'a, D: Kernels>(device: &D, mut gradient: ViewMut<'a, D>, write: Write) -> ViewMut<'a, D> {
    if write == Write::Set {
        device.fill(gradient.again(), D::Elem::ZERO);
    }
    gradient
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

/// dW += Xᵀ · dY, in the orientation of the parameter.
fn weight_gradient<D: Kernels>(w: &mut Param<D>, x: View<D>, dy: View<D>) {
    w.accumulate(|device, dw, write| product(device, dw, x.t(), dy, write));
}
