//! Embedding and cross-entropy over a vocabulary that is split over ranks.
use super::{Partial, Rows, Split, sum_of};
use crate::weight::RowWeight;
use comm::Axis;
use kernels::{Kernels, Slice};
use tensor::{Ids, Tensor};

/// Which rows of a table cut by rows are this rank's.
fn slice(rank: usize, len: usize) -> Slice {
    Slice { first: rank * len, len }
}

/// The table's row of each id; zero where it lies elsewhere, so an addend.
pub fn embed<D: Kernels>(table: &Rows<D>, rank: usize, ids: &Ids<D>) -> Partial<D> {
    let (table, axis) = table.share();
    let mut y = table.beside(ids.len(), table.cols());
    table.device().embed(y.view_mut(), table.view(), ids.index(), slice(rank, table.rows()));
    Partial::sum(y, axis)
}

/// dtable\[id\] += dy, for the ids of this rank's rows.
pub fn embed_backward<D: Kernels>(table: &mut RowWeight<D>, rank: usize, ids: &Ids<D>, dy: &Tensor<D>) {
    assert_eq!(ids.len(), dy.rows(), "an id for every row");
    table.param().accumulate(|device, gradient, write| {
        let slice = slice(rank, gradient.rows());
        device.embed_backward(sum_of(device, gradient, write), dy.view(), ids.index(), slice);
    });
}

/// Each row's stabiliser, from this rank's logits.
pub fn row_stab<D: Kernels>(logits: &Split<D>) -> Partial<D> {
    let x = logits.share();
    let mut m = x.beside(x.rows(), 1);
    x.device().row_stab(m.view_mut(), x.view());
    Partial::stab(m, logits.axis())
}

/// Each row's Σ exp(logit − m) and its target's logit, from this rank's logits.
pub fn row_sums<D: Kernels>(logits: &Split<D>, m: &Tensor<D>, rank: usize, targets: &Ids<D>) -> Partial<D> {
    let x = logits.share();
    assert_eq!(x.rows(), targets.len(), "a target for every row");
    let mut sums = x.beside(x.rows(), 2);
    x.device().row_sums(sums.view_mut(), x.view(), m.view(), targets.index(), slice(rank, x.cols()));
    Partial::sum(sums, logits.axis())
}

/// These rows' share of a loss that is a mean over `mean_over` tokens, and each row's log-sum-exp, in m's memory.
/// Data ranks each have an addend of the loss.
pub fn cross_entropy<D: Kernels>(
    mut m: Tensor<D>,
    sums: &Tensor<D>,
    mean_over: usize,
) -> (Partial<D>, Tensor<D>) {
    let (device, mut loss) = (m.device().clone(), m.beside(1, 1));
    device.cross_entropy(loss.view_mut(), m.view_mut(), sums.view(), mean_over);
    (Partial::sum(loss, Axis::Dp), m)
}

/// The logits turn into their gradient in place.
#[must_use]
pub fn cross_entropy_backward<D: Kernels>(
    mut logits: Split<D>,
    lse: &Tensor<D>,
    rank: usize,
    targets: &Ids<D>,
    mean_over: usize,
) -> Split<D> {
    let slice = slice(rank, logits.shape()[1]);
    let x = logits.share_mut().view_mut();
    lse.device().cross_entropy_backward(x, lse.view(), targets.index(), slice, mean_over);
    logits
}
