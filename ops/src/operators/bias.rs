//! A bias: one row, added to every token's row. Split features get the local part of it. The residual stream
//! gets it once, after the reduction: added before, it would be summed once per rank, and
//! [`Partial`](crate::Partial) has no such sum.
use crate::handles::weight::{ColumnWeight, WholeWeight};
use crate::tensors::sum_of;
use crate::{Columns, Result, Split, Stream};
use kernels::Kernels;
use tensor::Tensor;

/// `Y[B,O_t] + b[1,O_t]`.
///
/// # Errors
/// If the two are split along different axes.
pub fn add_columns<D: Kernels>(mut y: Split<D>, bias: &Columns<D>) -> Result<Split<D>> {
    let row = bias.row(y.axis())?;
    assert_eq!(row.shape(), [1, y.shape()[1]], "one bias for each feature");
    y.device().clone().add_row(y.share_mut().view_mut(), row.view());
    Ok(y)
}

/// `db[1,O_t] += Σ_B dY[B,O_t]`.
pub fn columns_bias_gradient<D: Kernels>(bias: &mut ColumnWeight<D>, dy: &Split<D>) {
    bias.param().accumulate(|device, db, write| {
        device.add_rows(sum_of(device, db, write), dy.share().view());
    });
}

/// `Y[B,D] + b[1,D]`, for this rank's tokens.
#[must_use]
pub fn add_bias<D: Kernels>(mut y: Stream<D>, bias: &Tensor<D>) -> Stream<D> {
    assert_eq!(bias.shape(), [1, y.cols()], "one bias for each feature");
    y.device().clone().add_row(y.share_mut().view_mut(), bias.view());
    y
}

/// `db[1,D] += Σ dY`, over this rank's tokens.
pub fn bias_gradient<D: Kernels>(bias: &mut WholeWeight<D>, dy: &Stream<D>) {
    bias.param().accumulate(|device, db, write| {
        device.add_rows(sum_of(device, db, write), dy.share().view());
    });
}
