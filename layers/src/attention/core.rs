//! Core of attention: maps queries, keys and values of whole heads to each query's weighted sum of values.
//! Its only parameter, if any, are the sinks of its heads, and it needs the keys of all tokens that a query
//! sees. If ranks share the tokens of a sequence, a strategy has the keys gathered, or builds another core
//! instead.
//!
//! ```text
//! O[i] = Σ_j softmax_j(Q[i]·K[j] / √d) · V[j]       over the tokens j that i sees
//! ```
//! A sink is a score more in each query's softmax, of a value of 0: the softmax begins with it.
//!
//! Source: Vaswani et al., "Attention is all you need", §3.2.1, arXiv:1706.03762; tile by tile: Dao et al.,
//! `FlashAttention`, arXiv:2205.14135.
use crate::build::strategy;
use crate::{Builder, InputHalf, Layer, Params};
use comm::Group;
use kernels::{Attend, Heads, Kernels, Scores};
use ops::{
    AttentionCall, ColumnWeight, KeptValue, PassContext, Result, Split, attention, attention_backward,
    gather_keys, sinks_gradient,
};
use std::ops::Range;

/// Settings of one block's attention and its sinks, which its core keeps.
pub struct CoreSettings<D: Kernels> {
    /// Number of the block in the model: the cache stores keys and values under it.
    pub block: usize,
    attend: Attend, // of this rank's heads, without dropout
    rate: f64,
    scores: String, // name of the scores, which dropout hashes
    /// Sinks of all heads of the tensor rank, and the columns of this rank's heads.
    sinks: Option<(ColumnWeight<D>, Range<usize>)>,
}

impl<D: Kernels> CoreSettings<D> {
    /// Builds the parameter `name.sinks[1, Hq]`, if the scores have sinks.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new(at: &Builder<D>, core: &strategy::Core) -> Result<Self> {
        let strategy::Core { axis, name, block, heads, first, scores, mask, rate } = *core;
        let columns = heads.queries * at.mesh.group(axis).size();
        let sinks = scores.sinks.then(|| ColumnWeight::sinks(at, axis, name, columns)).transpose()?;
        let sinks = sinks.map(|sinks| (sinks, 0..heads.queries));
        let scores = Scores::of(heads, scores, mask);
        Ok(Self {
            block,
            attend: Attend { heads, first, scores, dropout: None },
            rate,
            scores: name.into(),
            sinks,
        })
    }
    /// Returns the settings of those of these heads that begin with the query head `first`.
    #[must_use]
    pub fn part(self, heads: Heads, first: usize) -> Self {
        let attend = Attend { heads, first: self.attend.first + first, ..self.attend };
        let sinks = self.sinks.map(|(sinks, _)| (sinks, first..first + heads.queries));
        Self { attend, sinks, ..self }
    }
    /// Returns the settings and the sinks of a pass.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn attend(&self, cx: &PassContext<D>) -> Result<AttentionCall<D>> {
        let attend = Attend { dropout: cx.dropout(self.rate, &self.scores), ..self.attend };
        let Some((sinks, own)) = &self.sinks else { return Ok(attend.into()) };
        Ok(AttentionCall { attend, sinks: Some((sinks.columns()?, own.clone())) })
    }
    /// Adds to the gradient of the sinks. `given` are `O`, the log-sum-exp and `dO`.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn learn(&mut self, given: (&Split<D>, &Split<D::Wide>, &Split<D>)) -> Result<()> {
        let Some((sinks, own)) = &mut self.sinks else { return Ok(()) };
        sinks_gradient((sinks, own), &self.attend, given)
    }
    /// Appends the sinks to `into`.
    pub fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.extend(self.sinks.as_mut().map(|(sinks, _)| sinks.param()));
    }
}

/// Attention of this rank's heads, to this rank's keys or to those of all ranks that share the sequences.
pub struct AttentionCore<D: Kernels> {
    settings: CoreSettings<D>,
    sharers: Option<Group<D::Place>>, // ranks of the same sequences, whose keys and values are gathered
}

/// Values that backward needs: `[Q|K|V]`, the gathered `[K|V]`, `O` and the log-sum-exp.
pub type Saved<D> = KeptValue<(Split<D>, Option<Split<D>>, Split<D>, Split<<D as Kernels>::Wide>)>;

impl<D: Kernels> AttentionCore<D> {
    /// Creates the core of one block's attention. If `sharers` is given, its keys and values are gathered.
    ///
    /// # Errors
    /// If the values of its sinks are missing.
    pub fn new(at: &Builder<D>, core: &strategy::Core, sharers: Option<Group<D::Place>>) -> Result<Self> {
        Ok(Self { settings: CoreSettings::new(at, core)?, sharers })
    }
}

impl<D: Kernels> Layer<D> for AttentionCore<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = Saved<D>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, qkv: Split<D>) -> Result<(Split<D>, Saved<D>)> {
        let attend = self.settings.attend(cx)?;
        let gather = |group: &Group<D::Place>| gather_keys(cx, &qkv, attend.heads, group);
        let kv = self.sharers.as_ref().map(gather).transpose()?;
        let (o, lse) = attention(cx, self.settings.block, &qkv, kv.as_ref(), &attend);
        let kept = cx.keep((qkv, kv, o.clone(), lse));
        Ok((o, kept))
    }

    fn backward_input(&mut self, cx: &PassContext<D>, saved: Saved<D>, d_o: Split<D>) -> InputHalf<D, Self> {
        let (qkv, kv, o, lse) = saved.open();
        let kv = kv.as_ref().zip(self.sharers.as_ref());
        let attend = self.settings.attend(cx)?;
        self.settings.learn((&o, &lse, &d_o))?;
        Ok((attention_backward(cx, self.settings.block, &qkv, kv, &attend, (&o, &lse, &d_o))?, ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.settings.params(into);
    }
}
