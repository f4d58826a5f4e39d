//! Attention from latents: rows `[Q | K | V]` of this rank's heads, from what is computed of latents, or for
//! keys and values that are kept compressed.
//! Letters: `C` latent of keys and values, normed; `R` features of a key that all heads share; `W` this
//! rank's columns of the matrix that gives `[K_h | V_h]` of head after head from `C`.
//!
//! ```text
//! expanded    K_h = [C·W_h,K | R],  V_h = C·W_h,V                 as many KV heads as query heads
//! compressed  Q_h = [Q_h,C·W_h,Kᵀ | Q_h,R],  K = [C | R],  V = C   one KV head; O_h = O_h,C·W_h,V after it
//! ```
//! Source: DeepSeek-AI, "DeepSeek-V2", §2.1 and appendix C, arXiv:2405.04434.
use crate::handles::split::same;
use crate::handles::weight::ColumnWeight;
use crate::operators::gradients::weight_gradient;
use crate::tensors::product;
use crate::{Columns, Partial, Result, Split, Stream};
use kernels::{Heads, Kernels, Write};
use std::ops::Range;
use tensor::{Category, Scalar, Tensor, View};

/// Returns the first `n` features of each token, and the others.
#[must_use]
pub fn stream_parts<D: Kernels>(x: &Stream<D>, n: usize) -> [Stream<D>; 2] {
    [(0, n), (n, x.cols() - n)].map(|(first, len)| {
        let mut part = x.share().along(len);
        x.device().copy(part.view_mut(), x.share().view().take_cols(first, len));
        x.with(part)
    })
}

/// Returns the features of both for each token.
#[must_use]
pub fn joined_streams<D: Kernels>([a, b]: [&Stream<D>; 2]) -> Stream<D> {
    let mut both = a.share().along(a.cols() + b.cols());
    let (first, rest) = both.view_mut().split_cols(a.cols());
    a.device().copy(first, a.share().view());
    a.device().copy(rest, b.share().view());
    a.with(both)
}

/// Columns of a head's own features of its key, in the outputs of `W`, and of its value.
fn own(heads: Heads, head: usize) -> [Range<usize>; 2] {
    let first = head * (heads.plain + heads.value);
    [first..first + heads.plain, first + heads.plain..first + heads.plain + heads.value]
}

fn part<D: Kernels>(x: View<'_, D>, of: Range<usize>) -> View<'_, D> {
    x.take_cols(of.start, of.len())
}

/// Copies the columns of K and V in a row `[Q | K | V]` and the outputs of `W` to where both lie, head by
/// head; with `back`, from there.
fn each_head(heads: Heads, mut copy: impl FnMut(Range<usize>, Range<usize>)) {
    let Heads { plain, .. } = heads;
    for head in 0..heads.queries {
        let [key, value] = own(heads, head);
        let first = heads.k().start + heads.key(head).start;
        copy(first..first + plain, key);
        let first = heads.v().start + heads.output(head).start;
        copy(first..first + value.len(), value);
    }
}

/// Returns `[K_h | V_h]` of this rank's heads, from the rows `[C | R]` of all tokens.
///
/// # Errors
/// If the weight's values cannot be gathered.
pub fn up_projected<D: Kernels>(kept: &Tensor<D>, up: &Columns<D>) -> Result<Split<D>> {
    let w = up.whole().view();
    let mut y = kept.along(w.cols());
    product(kept.device(), y.view_mut(), kept.view().take_cols(0, w.rows()), w, Write::Set);
    Ok(Split::new(y, up.axis))
}

/// Returns `[Q | K | V][B,·]` of queries, the outputs of `W`, and the rows `[C | R]` of all tokens.
///
/// # Errors
/// If the two are split along different axes.
pub fn expanded<D: Kernels>(q: &Split<D>, up: &Split<D>, kept: &Tensor<D>, heads: Heads) -> Result<Split<D>> {
    same(q.axis(), up.axis())?;
    let device = q.device();
    let shared = heads.dim - heads.plain;
    let mut y = q.share().along(heads.row());
    device.copy(y.view_mut().take_cols(0, heads.q().len()), q.share().view());
    each_head(heads, |to, from| {
        device.copy(y.view_mut().take_cols(to.start, to.len()), part(up.share().view(), from));
    });
    for head in 0..heads.keys {
        let first = heads.k().start + heads.key(head).end - shared;
        let from = kept.view().take_cols(kept.cols() - shared, shared);
        device.copy(y.view_mut().take_cols(first, shared), from);
    }
    Ok(Split::new(y, q.axis()))
}

/// Returns the matrix of zeros and ones that sums the shared features of keys: `[H_t·d, d − plain]`.
#[must_use]
pub fn sum_of_shared<D: Kernels>(device: &D, heads: Heads) -> Tensor<D> {
    let shared = heads.dim - heads.plain;
    let one = move |i: usize| {
        let [row, col] = [i / shared % heads.dim, i % shared];
        if row == heads.plain + col { D::Elem::ONE } else { D::Elem::ZERO }
    };
    Tensor::from_fn(device, Category::Buffers, heads.k().len(), shared, one)
}

/// The gradients of [`expanded`]: of queries, of the outputs of `W`, and of `[C | R]`, which is a partial sum
/// over the ranks that have the other heads. `sum` is [`sum_of_shared`].
///
/// # Errors
/// If the axes differ.
pub fn expanded_backward<D: Kernels>(
    d: &Split<D>,
    up: &Columns<D>,
    sum: &Tensor<D>,
    heads: Heads,
) -> Result<(Split<D>, Split<D>, Partial<D>)> {
    same(d.axis(), up.axis)?;
    let device = d.device();
    let axis = d.axis();
    let w = up.whole().view();
    let d = d.share().view();
    let mut dq = sized(&d, device, heads.q().len());
    device.copy(dq.view_mut(), part(d, heads.q()));
    let mut dup = sized(&d, device, w.cols());
    each_head(heads, |from, to| {
        device.copy(dup.view_mut().take_cols(to.start, to.len()), part(d, from));
    });
    let mut dkept = sized(&d, device, w.rows() + sum.cols());
    let (latent, shared) = dkept.view_mut().split_cols(w.rows());
    product(device, latent, dup.view(), w.t(), Write::Set);
    product(device, shared, part(d, heads.k()), sum.view(), Write::Set);
    Ok((Split::new(dq, axis), Split::new(dup, axis), Partial::sum(dkept, axis)))
}

fn sized<D: Kernels>(like: &View<D>, device: &D, cols: usize) -> Tensor<D> {
    Tensor::empty(device, Category::Activations, like.rows(), cols)
}

/// `dW += Cᵀ · d[K_h | V_h]`, from the latents of all tokens.
pub fn up_gradient<D: Kernels>(up: &mut ColumnWeight<D>, latent: &Tensor<D>, dup: &Split<D>) {
    weight_gradient(up.param(), latent.view(), dup.share().view());
}

/// Returns `[Q | K][B,·]` of [compressed](Heads::compressed) keys, of queries and the rows `[C | R]`.
///
/// # Errors
/// If the axes differ.
pub fn compressed<D: Kernels>(
    q: &Split<D>,
    up: &Columns<D>,
    kept: &Tensor<D>,
    heads: Heads,
) -> Result<Split<D>> {
    same(q.axis(), up.axis)?;
    let device = q.device();
    let w = up.whole().view();
    let kept_heads = heads.compressed(w.rows());
    let mut y = q.share().along(kept_heads.row());
    for head in 0..heads.queries {
        let from = part(q.share().view(), heads.key(head));
        let columns = y.view_mut().take_cols(kept_heads.key(head).start, kept_heads.dim);
        let (latent, shared) = columns.split_cols(w.rows());
        let [key, _] = own(heads, head);
        product(device, latent, from.take_cols(0, heads.plain), part(w, key).t(), Write::Set);
        device.copy(shared, from.take_cols(heads.plain, heads.dim - heads.plain));
    }
    device.copy(y.view_mut().take_cols(kept_heads.k().start, kept_heads.dim), kept.view());
    Ok(Split::new(y, q.axis()))
}

/// Returns `O[B, H_t·v]` of the outputs of attention to compressed keys, `[B, H_t·C]`.
///
/// # Errors
/// If the axes differ.
pub fn decompressed<D: Kernels>(o: &Split<D>, up: &Columns<D>, heads: Heads) -> Result<Split<D>> {
    same(o.axis(), up.axis)?;
    let device = o.device();
    let w = up.whole().view();
    let mut y = o.share().along(heads.gathered());
    for head in 0..heads.queries {
        let [_, value] = own(heads, head);
        let from = o.share().view().take_cols(head * w.rows(), w.rows());
        let result = y.view_mut().take_cols(heads.output(head).start, heads.value);
        product(device, result, from, part(w, value), Write::Set);
    }
    Ok(Split::new(y, o.axis()))
}
