//! Attention on this rank's heads. Each rank has whole heads, so the axis of heads needs no communication.
use super::running::{AttentionCall, Running};
use crate::handles::split::same;
use crate::handles::weight::ColumnWeight;
use crate::operators::tokens::scatter_tokens;
use crate::tensors::sum_of;
use crate::{PassContext, Result, Rotary, Split, filled, wide_along};
use comm::Group;
use kernels::{Attend, Heads, Indexed, Kernels, Qkv, Segment, Span};
use std::ops::Range;
use tensor::{Category, Device, Place, Scalar, Tensor, View, ViewMut};

/// The parts Q and `[K | V]` of a fused `[Q | K | V]`.
pub(super) fn parts<D: Kernels>(qkv: View<D>, heads: Heads) -> [View<D>; 2] {
    assert_eq!(qkv.cols(), heads.row(), "columns of [Q | K | V] for {heads:?}");
    [heads.q(), heads.kv()].map(|part| qkv.take_cols(part.start, part.len()))
}

/// Queries, and the keys and values of `[K | V]`.
pub(super) fn with_keys<'a, D: Kernels>(heads: Heads, q: View<'a, D>, kv: View<'a, D>) -> Qkv<'a, D> {
    let [k, v] = [heads.k(), heads.v()].map(|part| kv.take_cols(part.start - heads.kv().start, part.len()));
    Qkv { q, k, v }
}

/// Scratch for spans of at most `keys` keys.
pub(super) fn scratch<D: Kernels>(device: &D, heads: Heads, keys: usize) -> Tensor<D::Wide> {
    Tensor::empty(
        device.wide(),
        Category::Buffers,
        1,
        (device.scratch().attention)([heads.queries, heads.keys, heads.dim, heads.value], keys),
    )
}

pub(super) fn most_keys<P: Place>(spans: &Indexed<Span, P>) -> usize {
    spans.list().iter().map(|s| s.key.len).max().unwrap_or(0)
}

/// Counts the work of products over all query-key pairs that the mask lets through: `of_keys` with features
/// of keys, and `of_values` with those of values.
pub(super) fn count<D: Kernels>(
    device: &D,
    attend: &Attend,
    spans: &Indexed<Span, D::Place>,
    [of_keys, of_values]: [usize; 2],
) {
    let pairs: usize = spans.list().iter().map(|span| attend.scores.mask.pairs(span)).sum();
    let Heads { queries, dim, value, .. } = attend.heads;
    device.meter().work(&[2, pairs, queries, of_keys * dim + of_values * value]);
}

/// Applies the rotary embedding to the queries and keys of `[Q | K | V]` by their positions, in place; with
/// `back`, to their gradients.
pub fn rotate<D: Kernels>(
    cx: &PassContext<D>,
    rotary: &Rotary<D>,
    qkv: &mut Split<D>,
    heads: Heads,
    back: bool,
) {
    let device = qkv.device().clone();
    let table = rotary.table(&device, cx.reach());
    assert_eq!(cx.rows(), qkv.shape()[0], "a position for every token");
    let turned = heads.turned();
    let queries_and_keys = qkv.share_mut().view_mut().take_cols(turned.start, turned.len());
    device.rotate(queries_and_keys, table.view(), cx.tokens_on(device.place()), heads, back);
}

/// Softmax of the scores times the values, over all spans: `O[B, Hq·v]` and the log-sum-exp `[B, Hq]`. `keys`
/// is the largest number of keys of any span, now or later, so scratch has the same size from token to token.
pub fn softmax<D: Kernels>(
    device: &D,
    attend: &AttentionCall<D>,
    (spans, keys): (&Indexed<Span, D::Place>, usize),
    qkv: Qkv<D>,
) -> (Tensor<D>, Tensor<D::Wide>) {
    let rows = qkv.q.rows();
    let heads = attend.heads;
    let mut scratch = scratch(device, heads, keys);
    count(device, attend, spans, [1, 1]);
    let spans = spans.on(device.place());
    if let Some(sinks) = attend.sinks() {
        let mut run = Running::new(device, rows, heads, Some(sinks));
        device.attention_block(attend, spans, qkv, run.view(heads), scratch.view_mut());
        return run.finish(device, heads);
    }
    let mut o = Tensor::empty(device, Category::Activations, rows, heads.gathered());
    let mut lse = Tensor::empty(device.wide(), Category::Activations, rows, heads.queries);
    device.attention(attend, spans, qkv, o.view_mut(), lse.view_mut(), scratch.view_mut());
    (o, lse)
}

/// Self-attention, `QKV[B, (Hq+2Hk)·d]` to `O[B, Hq·d]` and the log-sum-exp `[B, Hq]`. With a cache, keys and
/// values are stored in it under this `block`, and queries attend to all that are stored there. `kv`, if
/// given, holds the keys and values of all ranks that share the sequences, `[K | V][B_all, 2·Hk·d]`
/// ([`gather_keys`](crate::gather_keys)).
#[must_use]
pub fn attention<D: Kernels>(
    cx: &PassContext<D>,
    block: usize,
    qkv: &Split<D>,
    kv: Option<&Split<D>>,
    attend: &AttentionCall<D>,
) -> (Split<D>, Split<D::Wide>) {
    let axis = qkv.axis();
    let device = qkv.device();
    let [q, own] = parts(qkv.share().view(), attend.heads);
    let mut kv = kv.map_or(own, |kv| memory(kv, attend.heads));
    assert_eq!(kv.rows(), cx.rows_of_parts(), "a key for every token");
    let mut past = cx.past();
    let mut most = most_keys(cx.spans());
    if let Some(past) = &mut past {
        let capacity = past.capacity;
        let store = &mut past.slot(block, device, [capacity, kv.cols()]).stored;
        device.put_rows(store.view_mut(), kv, cx.stored().on(device.place()));
        (kv, most) = (store.view(), capacity);
    }
    let (o, lse) = softmax(device, attend, (cx.spans(), most), with_keys(attend.heads, q, kv));
    (Split::new(o, axis), Split::new(lse, axis))
}

/// Cross-attention, queries `[B, Hq·d]` and the memory's `[K | V][M, 2·Hk·d]` to `O[B, Hq·d]` and the
/// log-sum-exp `[B, Hq]`.
///
/// # Errors
/// If the two are split along different axes.
pub fn cross_attention<D: Kernels>(
    cx: &PassContext<D>,
    q: &Split<D>,
    kv: &Split<D>,
    attend: &AttentionCall<D>,
) -> Result<(Split<D>, Split<D::Wide>)> {
    same(q.axis(), kv.axis())?;
    let qkv = with_keys(attend.heads, q.share().view(), memory(kv, attend.heads));
    let (o, lse) = softmax(q.device(), attend, (cx.memory(), most_keys(cx.memory())), qkv);
    Ok((Split::new(o, q.axis()), Split::new(lse, q.axis())))
}

fn memory<D: Kernels>(kv: &Split<D>, heads: Heads) -> View<'_, D> {
    assert_eq!(kv.shape()[1], heads.kv().len(), "columns of [K | V] for {heads:?}");
    kv.share().view()
}

/// The softmax's backward. Recomputes the scores tile by tile, and adds to the gradients of queries, keys and
/// values.
pub fn softmax_backward<D: Kernels>(
    device: &D,
    (attend, spans): (&Attend, &Indexed<Span, D::Place>),
    qkv: Qkv<D>,
    (o, lse, d_o): (&Tensor<D>, &Tensor<D::Wide>, &Tensor<D>),
    dqkv: [ViewMut<D>; 3],
) {
    let (delta, mut scratch) = (delta(attend, o, d_o), for_backward(device, attend, spans));
    let (spans, saved) = (spans.on(device.place()), (lse.view(), delta.view()));
    device.attention_backward(attend, spans, qkv, saved, d_o.view(), dqkv, scratch.view_mut());
}

/// Adds the gradients of these spans, which are summed over calls or ranks: in the wide dtype. `saved` is the
/// log-sum-exp and [`delta`].
pub(super) fn add_gradients<D: Kernels>(
    device: &D,
    (attend, spans): (&Attend, &Indexed<Span, D::Place>),
    qkv: Qkv<D>,
    (lse, delta, d_o): (&Tensor<D::Wide>, &Tensor<D::Wide>, &Tensor<D>),
    dqkv: [ViewMut<D::Wide>; 3],
) {
    let mut scratch = for_backward(device, attend, spans);
    let (spans, saved) = (spans.on(device.place()), (lse.view(), delta.view()));
    device.attention_block_backward(attend, spans, qkv, saved, d_o.view(), dqkv, scratch.view_mut());
}

/// Σ o·do of each query.
pub(super) fn delta<D: Kernels>(attend: &Attend, o: &Tensor<D>, d_o: &Tensor<D>) -> Tensor<D::Wide> {
    let mut delta = wide_along(o, attend.heads.queries);
    o.device().attention_delta(attend.heads, delta.view_mut(), o.view(), d_o.view());
    delta
}

/// The gradient of sinks, in these columns of them: `dsinks[1, Hq] −= Σ e^(sink − lse)·δ` over this rank's
/// queries. `given` are `O`, the log-sum-exp and `dO`.
///
/// # Errors
/// If ranks do not meet.
pub fn sinks_gradient<D: Kernels>(
    (sinks, of): (&mut ColumnWeight<D>, &Range<usize>),
    attend: &Attend,
    given: (&Split<D>, &Split<D::Wide>, &Split<D>),
) -> Result<()> {
    let delta = delta(attend, given.0.share(), given.2.share());
    let value = sinks.columns()?;
    sinks.param().accumulate(|device, to, write| {
        let sum = sum_of(device, to, write).take_cols(of.start, of.len());
        let value = value.whole().view().take_cols(of.start, of.len());
        device.attention_sinks(sum, value, given.1.share().view(), delta.view());
    });
    Ok(())
}

/// Counts the work of a backward, and returns its scratch.
fn for_backward<D: Kernels>(device: &D, attend: &Attend, spans: &Indexed<Span, D::Place>) -> Tensor<D::Wide> {
    count(device, attend, spans, [3, 2]); // S, dQ, dK; dP, dV
    scratch(device, attend.heads, most_keys(spans))
}

/// The gradient of [`attention`], `dQKV[B, (Hq+2Hk)·d]`. With a cache, the slices of a sequence run backward
/// last slice first: later slices have already added their part to the gradients of a slice's keys and
/// values. After the first slice the cache is freed.
///
/// With `kv`, the gradients of keys and values are summed over the ranks of the group, in the wide dtype: a
/// reduce-scatter of `B_all·2·Hk·d` elements.
///
/// # Errors
/// If a collective fails.
pub fn attention_backward<D: Kernels>(
    cx: &PassContext<D>,
    block: usize,
    qkv: &Split<D>,
    kv: Option<(&Split<D>, &Group<D::Place>)>,
    attend: &Attend,
    given: (&Split<D>, &Split<D::Wide>, &Split<D>),
) -> Result<Split<D>> {
    let device = qkv.device();
    let [q, own] = parts(qkv.share().view(), attend.heads);
    let given = (given.0.share(), given.1.share(), given.2.share());
    let heads = attend.heads;
    let mut past = cx.past();
    if kv.is_none() && past.is_none() {
        let mut dqkv = filled(device, Category::Activations, qkv.shape(), D::Elem::ZERO);
        let (dq, dkv) = dqkv.view_mut().split_cols(heads.q().end);
        let (dk, dv) = dkv.split_cols(heads.k().len());
        softmax_backward(device, (attend, cx.spans()), with_keys(heads, q, own), given, [dq, dk, dv]);
        return Ok(Split::new(dqkv, qkv.axis()));
    }
    let wide = device.wide();
    let zero = |shape| filled(wide, Category::Activations, shape, <D::Wide as Device>::Elem::ZERO);
    let mut dq = zero([qkv.shape()[0], heads.q().len()]);
    let mut dkv = zero([cx.rows_of_parts(), heads.kv().len()]);
    let (o, lse, d_o) = given;
    let spans = (attend, cx.spans());
    let saved = (lse, &delta(attend, o, d_o), d_o);
    if let Some(past) = &mut past {
        let capacity = past.capacity;
        let (stored, sums) = past.slot(block, device, [capacity, heads.kv().len()]).with_gradients();
        let (dk, dv) = sums.view_mut().split_cols(heads.k().len());
        add_gradients(device, spans, with_keys(heads, q, stored.view()), saved, [dq.view_mut(), dk, dv]);
        take_rows(wide, dkv.view_mut(), sums, cx.stored());
        if cx.pass().slice == 0 {
            past.free(block);
        }
    } else {
        let kv = kv.map_or(own, |(kv, _)| memory(kv, attend.heads));
        let (dk, dv) = dkv.view_mut().split_cols(heads.k().len());
        add_gradients(device, spans, with_keys(heads, q, kv), saved, [dq.view_mut(), dk, dv]);
    }
    if let Some((_, group)) = kv {
        dkv = scatter_tokens(cx, dkv, group)?;
    }
    let mut dqkv = Tensor::empty(device, Category::Activations, qkv.shape()[0], qkv.shape()[1]);
    let (of_queries, rest) = dqkv.view_mut().split_cols(heads.q().end);
    device.narrow(of_queries, dq.view());
    device.narrow(rest, dkv.view());
    Ok(Split::new(dqkv, qkv.axis()))
}

/// Copies the rows that [`put_rows`](Kernels::put_rows) put to a cache's sums back: y's rows become those.
pub(super) fn take_rows<D: Kernels>(
    device: &D,
    mut y: ViewMut<D>,
    sums: &Tensor<D>,
    rows: &Indexed<Segment, D::Place>,
) {
    for of in rows.list() {
        device.copy(y.again().take_rows(of.row, of.len), sums.view().take_rows(of.position, of.len));
    }
}

/// The gradients of [`cross_attention`]: of the queries, and of the memory's `[K | V]`.
///
/// # Errors
/// If they are split along different axes.
pub fn cross_attention_backward<D: Kernels>(
    cx: &PassContext<D>,
    (q, kv): (&Split<D>, &Split<D>),
    attend: &Attend,
    (o, lse): (&Split<D>, &Split<D::Wide>),
    d_o: &Split<D>,
) -> Result<[Split<D>; 2]> {
    same(q.axis(), kv.axis())?;
    let axis = q.axis();
    let device = q.device();
    let zero = |of: &Split<D>| filled(device, Category::Activations, of.shape(), D::Elem::ZERO);
    let [mut dq, mut dkv] = [q, kv].map(zero);
    let qkv = with_keys(attend.heads, q.share().view(), memory(kv, attend.heads));
    let (dk, dv) = dkv.view_mut().split_cols(qkv.k.cols());
    let given = (o.share(), lse.share(), d_o.share());
    softmax_backward(device, (attend, cx.memory()), qkv, given, [dq.view_mut(), dk, dv]);
    Ok([Split::new(dq, axis), Split::new(dkv, axis)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use comm::Axis;
    use kernels::{Mask, Segment};
    use tensor::{Cpu, Device, F61, Key};

    const ATTEND: Attend = Attend::of(Heads::new(2, 1, 2), Mask::Causal);

    /// Two sequences, of 3 and 2 tokens, first without their last ones. Kills: keys of later tokens in the
    /// place of earlier ones, or of another sequence; a mask that begins anew.
    #[test]
    fn attention_with_a_cache_equals_attention_to_the_whole_bit_for_bit() {
        let (_key, device) = (Key(7).enter(), Cpu::<F61>::default());
        let qkv = |rows: &[usize]| {
            let number = |i: usize| F61::sample((rows[i / 8] * 8 + i % 8) as u64, 1.0);
            Split::new(Tensor::from_fn(&device, Category::Activations, rows.len(), 8, number), Axis::Tp)
        };
        let run = |cx: &PassContext<_>, rows: &[usize]| {
            let (o, _) = attention(cx, 0, &qkv(rows), None, &ATTEND.into());
            o.share().read().unwrap().chunks(4).map(<[_]>::to_vec).collect::<Vec<_>>()
        };
        let whole = run(&PassContext::infer([3, 2]), &[0, 1, 2, 3, 4]);
        let mut cx = PassContext::infer([2, 1]).with_cache(4);
        assert_eq!(run(&cx, &[0, 1, 3]), [0, 1, 3].map(|row| whole[row].clone()));
        cx.advance(&[1, 1]);
        assert_eq!(run(&cx, &[2, 4]), [2, 4].map(|row| whole[row].clone()));
    }

    /// Three sequences of 5, 1 and 3 tokens in two slices, keys and values with gradients in the past. Kills:
    /// a slice that does not see those before it, or sees itself twice; gradients of keys that later slices
    /// have and that are not added, or added to another slice or sequence; a cache that stays.
    #[test]
    fn attention_in_slices_has_the_gradients_of_the_whole_bit_for_bit() {
        let (_key, device) = (Key(7).enter(), Cpu::<F61>::default());
        let given = |rows: &[usize], cols: usize, salt: usize| {
            let number = |i: usize| F61::sample((salt + rows[i / cols] * cols + i % cols) as u64, 1.0);
            Split::new(Tensor::from_fn(&device, Category::Activations, rows.len(), cols, number), Axis::Tp)
        };
        let back = |cx: &PassContext<_>, rows: &[usize], (o, lse): (Split<_>, Split<_>)| {
            let (qkv, d_o) = (given(rows, 8, 0), given(rows, 4, 900));
            let of = attention_backward(cx, 1, &qkv, None, &ATTEND, (&o, &lse, &d_o)).unwrap();
            of.share().read().unwrap().chunks(8).map(<[_]>::to_vec).collect::<Vec<_>>()
        };
        let ahead =
            |cx: &PassContext<_>, rows: &[usize]| attention(cx, 1, &given(rows, 8, 0), None, &ATTEND.into());
        let (all, cx): (Vec<_>, _) = ((0..9).collect(), PassContext::train(0, [5, 1, 3], 1));
        let whole = back(&cx, &all, ahead(&cx, &all));
        let part = |(position, len, sequence)| Segment { row: 0, len, position, sequence };
        let slice = |slice, parts: [_; 3]| {
            let cx = PassContext::default().then(Pass { slice, keeps: true, ..Pass::default() }, [0usize; 0]);
            cx.dealt(parts.map(part))
        };
        let first = slice(0, [(0, 2, 0), (0, 0, 1), (0, 1, 2)]).with_cache(5);
        let second = slice(1, [(2, 3, 0), (0, 1, 1), (1, 2, 2)]).after(&first);
        let rows = [&[0, 1, 6][..], &[2, 3, 4, 5, 7, 8]];
        let outputs = [ahead(&first, rows[0]), ahead(&second, rows[1])];
        for (cx, (rows, o)) in [second, first].iter().zip(rows.iter().zip(outputs).rev()) {
            assert_eq!(back(cx, rows, o), rows.iter().map(|row| whole[*row].clone()).collect::<Vec<_>>());
        }
        assert_eq!(device.meter().now(Category::KvCache), 0);
    }
}
