//! RMSNorm of queries and keys (qk-norm), before the rotary embedding: of every head, or jointly.
//!
//! ```text
//! forward    each head h of Q and K: X_h · r_h · gain, r_h = 1/√(mean(X_h²) + ε)     no traffic
//! backward   as in `norm.rs`; dgain[d] = Σ over heads and tokens               all-reduce, d elements a step
//! jointly    r of all of Q, and of all of K       all-reduce, 2 numbers of a token, forward and backward
//! ```
//!
//! All query heads share one gain, and all key heads another. Each rank has its own heads, so its dgain is a
//! partial sum. Jointly, a rank has the gains of its own heads.
//!
//! Source: Henry et al., "Query-key normalization for transformers", arXiv:2010.04245; Qwen3's form (RMS,
//! with a gain); together: `OLMo` Team, "2 `OLMo` 2 Furious", §3.3.2, arXiv:2501.00656. Chapter: heads.
use crate::norm::GAIN;
use crate::{Builder, Params};
use comm::{Axis, Group};
use kernels::{Heads, Kernels};
use ops::{
    ColumnWeight, InverseRms, KeptValue, PassContext, Placed, Result, Section, Split, WholeWeight,
    norm_heads, norm_heads_backward, norm_jointly, norm_jointly_backward,
};

/// The norms of queries and of keys.
pub struct HeadNorm<D: Kernels> {
    gains: HeadGains<D>,
    eps: f64,
}

/// Gains of queries and of keys.
enum HeadGains<D: Kernels> {
    /// Gains that heads share `[1,d]`.
    Each([WholeWeight<D>; 2]),
    /// Gains of this rank's heads `[1,H_t·d]` and `[1,K_t·d]`, all heads, and the ranks that have the others.
    Joint([ColumnWeight<D>; 2], Heads, Group<D::Place>),
}

/// `[Q | K | V]` before the norm, and what it was divided by.
pub type Saved<D> = KeptValue<(Split<D>, InverseRms<D>)>;

impl<D: Kernels> HeadNorm<D> {
    /// Creates parameters `name.q_norm` and `name.k_norm`, for heads that are split over the ranks of `axis`.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new(at: &Builder<D>, axis: Axis, name: &str, dim: usize, eps: f64) -> Result<Self> {
        let placement = at.placement().on(axis, Placed::Partial);
        let gain = |part| WholeWeight::new(at, format!("{name}.{part}"), [1, dim], placement.clone(), GAIN);
        Ok(Self { gains: HeadGains::Each([gain("q_norm")?, gain("k_norm")?]), eps })
    }
    /// Creates the same parameters for norms of all heads together, whose queries and keys are cut into these
    /// sections.
    ///
    /// # Errors
    /// If the values are missing, or the ranks do not divide the heads.
    pub fn joint(
        at: &Builder<D>,
        axis: Axis,
        name: &str,
        (all, [queries, keys]): (Heads, [Section; 2]),
        eps: f64,
    ) -> Result<Self> {
        let gain = |part, section| ColumnWeight::gain(at, axis, format!("{name}.{part}"), section, GAIN);
        let gains = [gain("q_norm", queries)?, gain("k_norm", keys)?];
        Ok(Self { gains: HeadGains::Joint(gains, all, at.mesh.group(axis).named(name)), eps })
    }
    /// Normalises the queries and keys in `[Q | K | V]`.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn forward(&self, cx: &PassContext<D>, qkv: Split<D>, heads: Heads) -> Result<(Split<D>, Saved<D>)> {
        let (y, r) = match &self.gains {
            HeadGains::Each([q, k]) => norm_heads(&qkv, heads, [&q.whole()?, &k.whole()?], self.eps),
            HeadGains::Joint(gains, all, group) => {
                norm_jointly(&qkv, [heads, *all], gains.each_ref(), self.eps, group)?
            }
        };
        Ok((y, cx.keep((qkv, r))))
    }
    /// Returns the gradient of the input, and adds to the gradients of the gains.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn backward(&mut self, saved: Saved<D>, heads: Heads, dy: &Split<D>) -> Result<Split<D>> {
        let (qkv, r) = saved.open();
        match &mut self.gains {
            HeadGains::Each(gains) => norm_heads_backward(&qkv, heads, gains.each_mut(), &r, dy),
            HeadGains::Joint(gains, all, group) => {
                norm_jointly_backward((&qkv, &r), [heads, *all], gains.each_mut(), dy, group)
            }
        }
    }
    /// Appends its parameters to `into`.
    pub fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        match &mut self.gains {
            HeadGains::Each(gains) => into.extend(gains.each_mut().map(WholeWeight::param)),
            HeadGains::Joint(gains, ..) => into.extend(gains.each_mut().map(ColumnWeight::param)),
        }
    }
}
