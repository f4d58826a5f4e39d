//! Attention on this rank's heads: each rank has whole heads, so nothing is exchanged.
use super::{Split, filled};
use crate::{Cx, Rotary};
use kernels::{Heads, Kernels, Qkv, Softmax, Span};
use tensor::{Category, Scalar, Tensor, View};

/// The parts of a fused `[Q | K | V]`.
fn parts<D: Kernels>(qkv: View<D>, heads: Heads) -> Qkv<D> {
    let (q, kv) = (heads.queries * heads.dim, heads.keys * heads.dim);
    assert_eq!(qkv.cols(), q + 2 * kv, "columns of [Q | K | V] for {heads:?}");
    Qkv { q: qkv.take_cols(0, q), k: qkv.take_cols(q, kv), v: qkv.take_cols(q + kv, kv) }
}

fn scratch<D: Kernels>(device: &D, heads: Heads, spans: &[Span]) -> Tensor<D> {
    let keys = spans.iter().map(|s| s.key.len).max().unwrap_or(0);
    Tensor::empty(device, Category::Buffers, 1, D::attention_scratch(heads, keys))
}

/// Query and key pairs that see each other, over all spans.
fn pairs(spans: &[Span]) -> usize {
    spans.iter().map(|s| s.query.len * s.key.len - s.query.len * (s.query.len - 1) / 2).sum()
}

/// Rotary embedding of the queries and keys of `[Q | K | V]` by their positions, in place; `back`: for the gradient.
pub fn rotate<D: Kernels>(cx: &Cx<D>, rotary: &Rotary<D>, qkv: &mut Split<D>, heads: Heads, back: bool) {
    let device = qkv.device().clone();
    let table = rotary.table(&device, cx.positions());
    assert_eq!(cx.rows(), qkv.shape()[0], "a position for every token");
    let queries_and_keys = qkv.share_mut().view_mut().take_cols(0, (heads.queries + heads.keys) * heads.dim);
    device.rotate(queries_and_keys, table.view(), cx.tokens(), heads.dim, back);
}

/// `QKV[B, (Hq+2Hk)·d]` to `O[B, Hq·d]` and the log-sum-exp `[B, Hq]`. With a cache, keys and values join those
/// stored there under `name`, and queries see all of them.
#[must_use]
pub fn attention<D: Kernels>(cx: &Cx<D>, name: &str, qkv: &Split<D>, heads: Heads) -> (Split<D>, Split<D>) {
    let (axis, qkv, device) = (qkv.axis(), qkv.share(), qkv.device());
    let Qkv { q, mut k, mut v } = parts(qkv.view(), heads);
    let rows = [qkv.rows(), heads.queries];
    let mut o = qkv.beside(qkv.rows(), q.cols());
    let mut m = filled(device, Category::Activations, rows, D::Elem::NEG_INF);
    let mut l = filled(device, Category::Activations, rows, D::Elem::ZERO);
    let mut cache = cx.cache();
    if let Some(cache) = &mut cache {
        if !cache.slots.contains_key(name) {
            let rows = cx.tokens().len() * cache.capacity;
            let fresh = [(); 2].map(|()| Tensor::empty(device, Category::KvCache, rows, k.cols()));
            cache.slots.insert(name.to_string(), fresh);
        }
        let capacity = cache.capacity;
        let [keys, values] = cache.slots.get_mut(name).expect("just put there");
        for (b, t) in cx.tokens().iter().enumerate() {
            for (store, new) in [(&mut *keys, k), (&mut *values, v)] {
                let to = store.view_mut().take_rows(b * capacity + t.position, t.len);
                device.copy(to, new.take_rows(t.row, t.len));
            }
        }
        (k, v) = (keys.view(), values.view());
    }
    let spans = cx.spans();
    let mut scratch = scratch(device, heads, spans);
    device.meter().work(4 * pairs(spans) * q.cols()); // two products
    let run = Softmax { out: o.view_mut(), max: m.view_mut(), sum: l.view_mut() };
    device.attention_block(heads, spans, Qkv { q, k, v }, run, scratch.view_mut());
    device.attention_finish(heads, Softmax { out: o.view_mut(), max: m.view_mut(), sum: l.view_mut() });
    (Split::new(o, axis), Split::new(m, axis))
}

/// The gradient of [`attention`] without a cache, recomputing the scores block by block.
#[must_use]
pub fn attention_backward<D: Kernels>(
    cx: &Cx<D>,
    qkv: &Split<D>,
    heads: Heads,
    (o, lse): (&Split<D>, &Split<D>),
    d_o: &Split<D>,
) -> Split<D> {
    let (axis, qkv, device) = (qkv.axis(), qkv.share(), qkv.device());
    let parts = parts(qkv.view(), heads);
    let mut delta = qkv.beside(qkv.rows(), heads.queries);
    device.attention_delta(heads, delta.view_mut(), o.share().view(), d_o.share().view());
    let mut dqkv = filled(device, Category::Activations, qkv.shape(), D::Elem::ZERO);
    let (dq, dkv) = dqkv.view_mut().split_cols(parts.q.cols());
    let (dk, dv) = dkv.split_cols(parts.k.cols());
    let spans = cx.spans();
    let mut scratch = scratch(device, heads, spans);
    device.meter().work(10 * pairs(spans) * parts.q.cols()); // five products
    device.attention_block_backward(
        heads,
        spans,
        parts,
        (lse.share().view(), delta.view()),
        d_o.share().view(),
        [dq, dk, dv],
        scratch.view_mut(),
    );
    Split::new(dqkv, axis)
}

/// The last token's row of every sequence that has one: `X[B, D]` to `[sequences, D]`.
#[must_use]
pub fn last_rows<D: Kernels>(cx: &Cx<D>, x: &Tensor<D>) -> Tensor<D> {
    assert_eq!(cx.rows(), x.rows(), "a row for every token");
    let mut y = x.beside(cx.spans().len(), x.cols());
    for (i, span) in cx.spans().iter().enumerate() {
        let last = span.query.row + span.query.len - 1;
        x.device().copy(y.view_mut().take_rows(i, 1), x.view().take_rows(last, 1));
    }
    y
}
