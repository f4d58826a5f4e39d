//! Operations on what ranks hold: shapes checked, FLOPs counted, results allocated, the same on every device.
//! Here alone is decided which operation may look inside a share, and what its result is: the trusted floor.
mod attention;
mod handles;
mod loss;
mod norm;

pub use attention::{attention, attention_backward, last_rows, rotate};
pub use handles::{Columns, Partial, Rows, Split, matmul, plus};
pub use loss::{cross_entropy, cross_entropy_backward, embed, embed_backward, row_stab, row_sums};
pub use norm::{rms_norm, rms_norm_backward, swiglu, swiglu_backward};

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
    device.meter().work(2 * c.rows() * c.cols() * a.cols());
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
