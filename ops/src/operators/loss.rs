//! Embedding and cross-entropy over a vocabulary that is split over ranks.
use crate::handles::split::same;
use crate::handles::weight::{RowWeight, WholeWeight};
use crate::tensors::sum_of;
use crate::{Partial, Region, Result, Rows, Split, Stream, wide_along};
use comm::{Axes, Group};
use kernels::{Kernels, LossTerms, MeanOver, OrderedKernels, RowShard};
use tensor::{Category, Index, Scalar, Tensor, TokenIds, View};

/// Returns this rank's rows of a table cut by rows. In a padded table the last ranks have fewer rows, or
/// none.
fn slice(rank: usize, share: usize, whole: usize) -> RowShard {
    let first = rank * share;
    RowShard { first, len: share.min(whole.saturating_sub(first)) }
}

/// Looks up the table's row of each id; zero where another rank has the row, so a partial sum.
pub fn embed<D: Kernels>(table: &Rows<D>, rank: usize, ids: &TokenIds<D::Place>) -> Partial<D> {
    let (table, axis) = table.share();
    let mut y = table.beside(ids.len(), table.cols());
    let slice = slice(rank, table.rows(), ids.vocabulary());
    table.device().embed(y.view_mut(), table.view(), ids.index(), slice);
    Partial::sum(y, axis)
}

/// dtable\[id\] += dy, for the ids of this rank's rows except the padding id.
pub fn embed_backward<D: Kernels>(
    table: &mut RowWeight<D>,
    rank: usize,
    ids: &TokenIds<D::Place>,
    padding: Option<usize>,
    dy: &Tensor<D>,
) {
    assert_eq!(ids.len(), dy.rows(), "an id for every row");
    table.param().accumulate(|device, gradient, write| {
        let slice = slice(rank, gradient.rows(), ids.vocabulary());
        let mut gradient = sum_of(device, gradient, write);
        for part in without(slice, padding) {
            let rows = gradient.again().take_rows(part.first - slice.first, part.len);
            device.embed_backward(rows, dy.view(), ids.index(), part);
        }
    });
}

/// Parts of a vocabulary shard before and after a row; all of the shard if the row is not in it.
fn without(slice: RowShard, row: Option<usize>) -> impl Iterator<Item = RowShard> {
    let index = row.and_then(|row| slice.local(row as u32));
    let after = index.map(|at| RowShard { first: slice.first + at + 1, len: slice.len - at - 1 });
    [Some(RowShard { len: index.unwrap_or(slice.len), ..slice }), after].into_iter().flatten()
}

/// Adds the table's row of each token's position to X, for this rank's tokens.
#[must_use]
pub fn position_rows<D: Kernels>(
    mut x: Stream<D>,
    table: &Tensor<D>,
    positions: &TokenIds<D::Place>,
) -> Stream<D> {
    assert_eq!(positions.len(), x.share().rows(), "a position for every token");
    let mut rows = x.share().beside(positions.len(), table.cols());
    let device = x.device().clone();
    device.embed(rows.view_mut(), table.view(), positions.index(), slice(0, table.rows(), table.rows()));
    device.add(x.share_mut().view_mut(), rows.view());
    x
}

/// The gradient of [`position_rows`] with respect to the table.
pub fn position_rows_backward<D: Kernels>(
    table: &mut WholeWeight<D>,
    positions: &TokenIds<D::Place>,
    dy: &Stream<D>,
) {
    table.param().accumulate(|device, gradient, write| {
        let whole = slice(0, gradient.rows(), gradient.rows());
        device.embed_backward(sum_of(device, gradient, write), dy.share().view(), positions.index(), whole);
    });
}

/// Returns this rank's logits without the padding columns, and the range of the vocabulary that they cover.
fn own<D: Kernels>(x: &Tensor<D>, rank: usize, vocabulary: usize) -> (View<'_, D>, RowShard) {
    let slice = slice(rank, x.cols(), vocabulary);
    (x.view().take_cols(0, slice.len), slice)
}

/// The rows' part of the loss, and each row's log-sum-exp.
type Losses<D> = (Partial<<D as Kernels>::Wide>, Tensor<<D as Kernels>::Wide>);

/// Cross-entropy loss of logits that are split over the ranks of a group, without gathering them. Returns
/// these rows' part of the loss, a partial sum over the axes `over`, and each row's log-sum-exp. Two
/// all-reduces: of one element a row, and of two (three with label smoothing).
///
/// # Errors
/// If a collective fails, or the group is of another axis.
#[track_caller]
pub fn split_cross_entropy<D: Kernels>(
    logits: &Split<D>,
    group: &Group<D::Place>,
    targets: &TokenIds<D::Place>,
    terms: &LossTerms,
    over: Axes,
) -> Result<Losses<D>> {
    same(logits.axis(), group.axis())?;
    cross_entropy(logits.share(), group, targets, terms, over)
}

/// Computes [`split_cross_entropy`] of this rank's columns, of which the group's other ranks have the others.
///
/// # Errors
/// If a collective fails.
#[track_caller]
pub fn cross_entropy<D: Kernels>(
    logits: &Tensor<D>,
    group: &Group<D::Place>,
    targets: &TokenIds<D::Place>,
    terms: &LossTerms,
    over: Axes,
) -> Result<Losses<D>> {
    let device = logits.device();
    let axes = group.axis();
    let (own, slice) = own(logits, group.rank(), terms.vocabulary);
    assert_eq!(own.rows(), targets.len(), "a target for every row");
    // Each row's stabiliser.
    let mut m = wide_along(logits, 1);
    device.row_stab(m.view_mut(), own);
    let mut m = Partial::stab(m, axes).all_reduce(group)?;
    // Each row's Σ exp(logit − m), its target's logit and, with label smoothing, Σ logit.
    let mut sums = m.beside(own.rows(), if terms.smoothing == 0.0 { 2 } else { 3 });
    device.row_sums(sums.view_mut(), own, m.view(), targets.index(), slice);
    let sums = Partial::sum(sums, axes).all_reduce(group)?;
    // Each row's log-sum-exp, in m's memory.
    let mut loss = m.beside(1, 1);
    device.wide().cross_entropy(loss.view_mut(), m.view_mut(), sums.view(), targets.index(), terms);
    Ok((Partial::sum(loss, over), m))
}

/// This rank's loss `[1,1]` of its own examples, as its addend of the loss over the ranks of `over`.
pub fn own_loss<D: Kernels>(loss: Tensor<D::Wide>, over: Axes) -> Partial<D::Wide> {
    assert_eq!(loss.shape(), [1, 1], "a loss is one element");
    Partial::sum(loss, over)
}

/// Turns the logits into their gradient in place; the gradient of padding is 0.
#[must_use]
pub fn cross_entropy_backward<D: Kernels>(
    logits: Split<D>,
    lse: &Tensor<D::Wide>,
    rank: usize,
    targets: &TokenIds<D::Place>,
    terms: &LossTerms,
) -> Split<D> {
    let axis = logits.axis();
    Split::new(logits_gradient(logits.into_share(), lse, rank, targets, terms), axis)
}

/// Turns this rank's columns of the logits into their gradient, as [`cross_entropy_backward`].
pub fn logits_gradient<D: Kernels>(
    mut logits: Tensor<D>,
    lse: &Tensor<D::Wide>,
    rank: usize,
    targets: &TokenIds<D::Place>,
    terms: &LossTerms,
) -> Tensor<D> {
    let device = logits.device().clone();
    let slice = slice(rank, logits.cols(), terms.vocabulary);
    let (x, padding) = logits.view_mut().split_cols(slice.len);
    device.cross_entropy_backward(x, lse.view(), targets.index(), slice, terms);
    device.fill(padding, D::Elem::ZERO);
    logits
}

/// Mean squared error (MSE) over all elements of so many tokens, those of other ranks and microbatches
/// included. Computes the part of this rank's tokens of `X[B,D]`, against `Y[B,D]`, which every rank has
/// whole. Returns this part, a partial sum over the axes `over`, and its gradient with respect to X, in X's
/// memory. One all-reduce of one element if each rank has its own tokens.
///
/// # Errors
/// If a collective fails, or the group is of another axis.
#[track_caller]
pub fn mean_square<D: Kernels>(
    mut x: Stream<D>,
    y: &Tensor<D>,
    over_tokens: MeanOver,
    group: &Group<D::Place>,
    over: Axes,
) -> Result<(Partial<D::Wide>, Stream<D>)> {
    assert_eq!([x.rows(), x.cols()], y.shape(), "a row for every token");
    let mine = x.mine();
    let numbers = MeanOver { targets: over_tokens.targets * y.cols(), ..over_tokens };
    let mut loss = Tensor::empty(x.device().wide(), Category::Activations, 1, 1);
    let y = y.view().take_rows(mine.start, mine.len());
    x.device().clone().mean_square(loss.view_mut(), x.share_mut().view_mut(), y, numbers);
    if let Region::Tokens { axis, .. } = x.region() {
        loss = Partial::sum(loss, axis).all_reduce(group)?;
    }
    Ok((Partial::sum(loss, over), x))
}

/// Returns the first k elements of every row of `X[B, V]`, and their columns: see [`OrderedKernels::top_k`].
///
/// # Panics
/// If there are fewer columns than k.
pub fn top_k<D: OrderedKernels>(x: &Tensor<D>, k: usize) -> (Tensor<D>, Index<D::Place>) {
    assert!(k <= x.cols(), "k is {k}; it must be at most the {} columns", x.cols());
    let device = x.device();
    let mut values = Tensor::empty(device, Category::Buffers, x.rows(), k);
    let mut columns = Index::empty(device.place(), values.len());
    device.top_k(values.view_mut(), &mut columns, x.view());
    (values, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Axis;
    use tensor::{Category, Cpu, Device};

    /// The second of two columns is padding, whatever it holds. Kills: padding in a softmax or with a
    /// gradient.
    #[test]
    fn padding_adds_nothing_to_the_loss_and_has_no_gradient() {
        let (device, mesh) = (Cpu::<f64>::default(), comm::Mesh::alone());
        let terms =
            LossTerms { mean_over: MeanOver::of(1), smoothing: 0.0, z: 0.5, vocabulary: 1, cap: None };
        let targets = TokenIds::targets(device.place(), &[0], 1).unwrap();
        let logits = Tensor::from_fn(&device, Category::Activations, 1, 2, |i| [3.0, 7.0][i]);
        let logits = Split::new(logits, Axis::Tp);
        let (loss, lse) =
            split_cross_entropy(&logits, mesh.group(Axis::Tp), &targets, &terms, Axis::Dp.into()).unwrap();
        assert_eq!(loss.all_reduce(mesh.group(Axis::Dp)).unwrap().read().unwrap(), [0.5 * 3.0 * 3.0]);
        let gradient = cross_entropy_backward(logits, &lse, 0, &targets, &terms);
        assert_eq!(gradient.share().read().unwrap(), [3.0, 0.0], "2·λ·lse");
    }
}
