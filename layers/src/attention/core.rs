//! The core of attention: queries, keys and values of whole heads to what each query gets of the values. It has no parameters, and
//! needs the keys of all tokens that a query sees: where ranks share the tokens of a sequence, a strategy builds another in
//! its place.
//!
//! ```text
//! O[i] = Σ_j softmax_j(Q[i]·K[j] / √d) · V[j]       over the tokens j that i sees
//! ```
//! Source: Vaswani et al., "Attention is all you need", §3.2.1, arXiv:1706.03762; block by block: Dao et al.,
//! `FlashAttention`, arXiv:2205.14135.
use crate::model::strategy;
use crate::ops::{Split, attention, attention_backward};
use crate::{Back, Cx, Kept, Layer, Params, Result};
use kernels::{Attend, Heads, Kernels, Mask};
use std::marker::PhantomData;

/// Attention of this rank's heads to the keys that are here.
pub struct AttentionCore<D: Kernels> {
    block: usize, // of the model: where a cache has its keys and values
    heads: Heads, // this rank's
    first: usize, // of the model's query heads
    mask: Mask,
    rate: f64,
    scores: String, // their name, which dropout is drawn by
    device: PhantomData<D>,
}

/// What backward needs of it: `[Q|K|V]`, `O` and the log-sum-exp.
pub type Saved<D> = Kept<(Split<D>, Split<D>, Split<<D as Kernels>::Wide>)>;

impl<D: Kernels> AttentionCore<D> {
    /// The core of these heads.
    #[must_use]
    pub fn new(core: &strategy::Core) -> Self {
        let strategy::Core { name, block, heads, first, mask, rate } = *core;
        Self { block, heads, first, mask, rate, scores: name.into(), device: PhantomData }
    }
    /// What its kernels are told in a pass.
    pub fn attend(&self, cx: &Cx<D>) -> Attend {
        let dropout = cx.dropout(self.rate, &self.scores);
        Attend { heads: self.heads, first: self.first, mask: self.mask, dropout }
    }
    /// The block of the model whose keys and values a cache has under this number.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }
}

impl<D: Kernels> Layer<D> for AttentionCore<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = Saved<D>;
    type Pending = ();

    fn forward(&self, cx: &Cx<D>, qkv: Split<D>) -> Result<(Split<D>, Saved<D>)> {
        let (o, lse) = attention(cx, self.block, &qkv, None, &self.attend(cx));
        let kept = cx.keep((qkv, o.clone(), lse));
        Ok((o, kept))
    }

    fn backward_input(&mut self, cx: &Cx<D>, saved: Saved<D>, d_o: Split<D>) -> Back<D, Self> {
        let (qkv, o, lse) = saved.open();
        Ok((attention_backward(cx, self.block, &qkv, None, &self.attend(cx), (&o, &lse, &d_o))?, ()))
    }

    fn backward_weight(&mut self, _: &Cx<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}
