//! Core of attention: maps queries, keys and values of whole heads to each query's weighted sum of values. It
//! has no parameters, and needs the keys of all tokens that a query sees. If ranks share the tokens of a
//! sequence, a strategy has the keys gathered, or builds another core instead.
//!
//! ```text
//! O[i] = Σ_j softmax_j(Q[i]·K[j] / √d) · V[j]       over the tokens j that i sees
//! ```
//! Source: Vaswani et al., "Attention is all you need", §3.2.1, arXiv:1706.03762; tile by tile: Dao et al.,
//! `FlashAttention`, arXiv:2205.14135.
use crate::build::strategy;
use crate::{InputHalf, Layer, Params};
use comm::Group;
use kernels::{Attend, Heads, Kernels, Mask};
use ops::{KeptValue, PassContext, Result, Split, attention, attention_backward, gather_keys};
use std::marker::PhantomData;

/// Settings of one block's attention, which its core keeps.
pub struct CoreSettings {
    /// Number of the block in the model: the cache stores keys and values under it.
    pub block: usize,
    heads: Heads, // this rank's
    first: usize, // number of its first query head in the model
    mask: Mask,
    rate: f64,
    scores: String, // name of the scores, which dropout hashes
}

impl From<&strategy::Core<'_>> for CoreSettings {
    fn from(core: &strategy::Core) -> Self {
        let strategy::Core { name, block, heads, first, mask, rate } = *core;
        Self { block, heads, first, mask, rate, scores: name.into() }
    }
}

impl CoreSettings {
    /// Returns the settings of the kernels in a pass.
    pub fn attend<D: Kernels>(&self, cx: &PassContext<D>) -> Attend {
        let dropout = cx.dropout(self.rate, &self.scores);
        Attend { first: self.first, dropout, ..Attend::of(self.heads, self.mask) }
    }
}

/// Attention of this rank's heads, to this rank's keys or to those of all ranks that share the sequences.
pub struct AttentionCore<D: Kernels> {
    settings: CoreSettings,
    sharers: Option<Group<D::Place>>, // ranks of the same sequences, whose keys and values are gathered
    device: PhantomData<D>,
}

/// Values that backward needs: `[Q|K|V]`, the gathered `[K|V]`, `O` and the log-sum-exp.
pub type Saved<D> = KeptValue<(Split<D>, Option<Split<D>>, Split<D>, Split<<D as Kernels>::Wide>)>;

impl<D: Kernels> AttentionCore<D> {
    /// Creates the core of one block's attention. If `sharers` is given, its keys and values are gathered.
    #[must_use]
    pub fn new(core: &strategy::Core, sharers: Option<Group<D::Place>>) -> Self {
        Self { settings: core.into(), sharers, device: PhantomData }
    }
}

impl<D: Kernels> Layer<D> for AttentionCore<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = Saved<D>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, qkv: Split<D>) -> Result<(Split<D>, Saved<D>)> {
        let attend = self.settings.attend(cx);
        let gather = |group: &Group<D::Place>| gather_keys(cx, &qkv, attend.heads, group);
        let kv = self.sharers.as_ref().map(gather).transpose()?;
        let (o, lse) = attention(cx, self.settings.block, &qkv, kv.as_ref(), &attend);
        let kept = cx.keep((qkv, kv, o.clone(), lse));
        Ok((o, kept))
    }

    fn backward_input(&mut self, cx: &PassContext<D>, saved: Saved<D>, d_o: Split<D>) -> InputHalf<D, Self> {
        let (qkv, kv, o, lse) = saved.open();
        let kv = kv.as_ref().zip(self.sharers.as_ref());
        let attend = self.settings.attend(cx);
        Ok((attention_backward(cx, self.settings.block, &qkv, kv, &attend, (&o, &lse, &d_o))?, ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}
