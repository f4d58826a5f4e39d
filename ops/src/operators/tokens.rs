//! Gathers and scatters rows of tokens among the ranks of a group that share the tokens of sequences. Rows
//! are gathered in the sequences' order; sums are scattered to the ranks that own the tokens.
use crate::{PassContext, Result, Split};
use comm::Group;
use kernels::{Heads, Kernels};
use std::ops::Range;
use tensor::Tensor;

/// Rows of each rank, as ranges in the order of the whole.
pub(super) type RowOrder = Vec<Vec<Range<usize>>>;

pub(super) fn order<R: Iterator<Item = Range<usize>>>(
    ranks: usize,
    rows: impl Fn(usize) -> R,
) -> (RowOrder, Vec<usize>) {
    let order: RowOrder = (0..ranks).map(|rank| rows(rank).filter(|of| !of.is_empty()).collect()).collect();
    let counts = order.iter().map(|of| of.iter().map(Range::len).sum()).collect();
    (order, counts)
}

/// Moves rows from rank order to the order of the whole, or back.
pub(super) fn moved<D: Kernels>(x: Tensor<D>, order: &RowOrder, back: bool) -> Tensor<D> {
    let in_order = |end: &mut usize, of: &Range<usize>| {
        let follows = of.start == *end;
        *end = of.end;
        Some(follows)
    };
    if order.iter().flatten().scan(0, in_order).all(|follows| follows) {
        return x;
    }
    let mut y = x.beside(x.rows(), x.cols());
    let mut row = 0;
    for of in order.iter().flatten() {
        let (from, to) = if back { (of.start, row) } else { (row, of.start) };
        x.device().copy(y.view_mut().take_rows(to, of.len()), x.view().take_rows(from, of.len()));
        row += of.len();
    }
    y
}

/// Gathers the rows `X[B_r,F]` of each rank's tokens in the order of the sequences: `X[B,F]`, the same on
/// every rank of the group.
///
/// # Errors
/// If a collective fails.
pub fn gather_tokens<D: Kernels>(
    cx: &PassContext<D>,
    x: Tensor<D>,
    group: &Group<D::Place>,
) -> Result<Tensor<D>> {
    if group.size() == 1 {
        return Ok(x);
    }
    let (order, rows) = order(group.size(), |rank| cx.rows_of_rank(rank));
    Ok(moved(group.all_gather_v(&x, &rows)?, &order, false))
}

/// Gathers the rows `X[k_r,F]` of the sequences that end on each rank, in the order of the sequences that
/// have tokens: the same on every rank.
///
/// # Errors
/// If a collective fails.
pub fn gather_last<D: Kernels>(
    cx: &PassContext<D>,
    x: Tensor<D>,
    group: &Group<D::Place>,
) -> Result<Tensor<D>> {
    if group.size() == 1 {
        return Ok(x);
    }
    let (order, rows) = order(group.size(), |rank| cx.ends_of_rank(rank));
    Ok(moved(group.all_gather_v(&x, &rows)?, &order, false))
}

/// Sums `X[B,F]`, a partial sum on every rank, and returns the rows of this rank's tokens, `X[B_r,F]`.
pub(super) fn scatter_tokens<D: Kernels, E: Kernels<Place = D::Place>>(
    cx: &PassContext<D>,
    x: Tensor<E>,
    group: &Group<D::Place>,
) -> Result<Tensor<E>> {
    let (order, rows) = order(group.size(), |rank| cx.rows_of_rank(rank));
    Ok(group.reduce_scatter_v(&moved(x, &order, true), &rows)?)
}

/// Gathers the keys and values of all ranks' tokens, `[K | V][B, 2·Hk·d]`, from each rank's
/// `[Q | K | V][B_r, (Hq+2Hk)·d]`: an all-gather of `B_r·2·Hk·d` elements.
///
/// # Errors
/// If a collective fails.
pub fn gather_keys<D: Kernels>(
    cx: &PassContext<D>,
    qkv: &Split<D>,
    heads: Heads,
    group: &Group<D::Place>,
) -> Result<Split<D>> {
    let kv = heads.kv();
    let x = qkv.share();
    let mut keys = x.along(kv.len());
    x.device().copy(keys.view_mut(), x.view().take_cols(kv.start, kv.len()));
    Ok(Split::new(gather_tokens(cx, keys, group)?, qkv.axis()))
}

/// Returns the last token's row of every sequence that ends on this rank: `X[B_r,F]` to `[k_r,F]`.
#[must_use]
pub fn last_rows<D: Kernels>(cx: &PassContext<D>, x: &Tensor<D>) -> Tensor<D> {
    assert_eq!(cx.rows(), x.rows(), "a row for every token");
    let ends = cx.tokens().iter().zip(cx.parts_of_tokens()).filter(|(own, part)| {
        let part = cx.parts()[**part];
        own.len > 0 && own.position + own.len == part.position + part.len
    });
    let rows = ends.map(|(own, _)| own.row + own.len - 1);
    let mut y = x.beside(rows.clone().count(), x.cols());
    for (i, last) in rows.enumerate() {
        x.device().copy(y.view_mut().take_rows(i, 1), x.view().take_rows(last, 1));
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenShards;
    use comm::{Axis, Mesh, World};
    use tensor::{Category, Cpu};

    /// Kills: a sequence's first row, or the batch's; a row for a sequence without tokens.
    #[test]
    fn last_rows_are_those_of_sequences_that_have_tokens() {
        let x = Tensor::from_fn(&Cpu::<f32>::default(), Category::Activations, 6, 2, |i| i as f32);
        let last = last_rows(&PassContext::infer([2, 0, 3, 1]), &x);
        assert_eq!((last.shape(), last.read().unwrap()), ([3, 2], vec![2.0, 3.0, 8.0, 9.0, 10.0, 11.0]));
    }

    /// Two sequences of 5 and 2 tokens: rank 1 has every third token from the second on, which ends both, and
    /// rank 0 the rest. Kills: rows in the order of ranks, another rank's last rows, rows handed back where
    /// they were taken from.
    #[test]
    fn rows_come_together_in_the_order_of_sequences_and_go_back() {
        let third = |n: usize, rank: usize, _: usize| {
            let mine = move |token: &usize| usize::from(token % 3 == 1) == rank;
            (0..n).filter(mine).map(|token| token..token + 1).collect()
        };
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let group = TokenShards::sharers(&mesh);
            let shards = TokenShards::new([1, 2], third).at(&mesh);
            let cx = PassContext::<Cpu<f32>>::infer([5, 2]).sharded(shards);
            let of = |sequence: usize, position: usize| (10 * sequence + position) as f32;
            let own: Vec<_> =
                cx.tokens().iter().flat_map(|t| (0..t.len).map(|i| of(t.sequence, t.position + i))).collect();
            let x = Tensor::from_fn(&device, Category::Activations, own.len(), 1, |i| own[i]);
            let last = gather_last(&cx, last_rows(&cx, &x), group)?.read().unwrap();
            let all = gather_tokens(&cx, x, group)?;
            let back = scatter_tokens(&cx, all.clone(), group)?.read().unwrap();
            assert_eq!(back, own.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
            Ok::<_, crate::Error>((all.read().unwrap(), last))
        };
        for (all, last) in World::threads(&[(Axis::Cp, 2)]).unwrap().run(run).unwrap() {
            assert_eq!(all, [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 11.0]);
            assert_eq!(last, [4.0, 11.0]);
        }
    }
}
