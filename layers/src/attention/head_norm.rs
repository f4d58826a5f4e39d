//! RMSNorm of every head of queries and keys (qk-norm), before the rotary embedding.
//!
//! ```text
//! forward    each head h of Q and K: X_h · r_h · gain, r_h = 1/√(mean(X_h²) + ε)     no traffic
//! backward   as in `norm.rs`; dgain[d] = Σ over heads and tokens               all-reduce, d elements a step
//! ```
//!
//! All query heads share one gain, and all key heads another. Each rank has its own heads, so its dgain is a
//! partial sum.
//!
//! Source: Henry et al., "Query-key normalization for transformers", arXiv:2010.04245; Qwen3's form (RMS,
//! with a gain). Chapter: heads.
use crate::norm::GAIN;
use crate::{Builder, Params};
use comm::Axis;
use kernels::{Heads, Kernels};
use ops::{KeptValue, PassContext, Placed, Result, Split, WholeWeight, norm_heads, norm_heads_backward};

/// The norms of query heads and of key heads.
pub struct HeadNorm<D: Kernels> {
    q: WholeWeight<D>, // [1,d]
    k: WholeWeight<D>, // [1,d]
    eps: f64,
}

/// `[Q | K | V]` before the norm, and each head's 1/rms.
pub type Saved<D> = KeptValue<(Split<D>, Split<<D as Kernels>::Wide>)>;

impl<D: Kernels> HeadNorm<D> {
    /// Creates parameters `name.q_norm` and `name.k_norm`, for heads that are split over the ranks of `axis`.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn new(at: &Builder<D>, axis: Axis, name: &str, dim: usize, eps: f64) -> Result<Self> {
        let placement = at.placement().on(axis, Placed::Partial);
        let gain = |part| WholeWeight::new(at, format!("{name}.{part}"), [1, dim], placement.clone(), GAIN);
        Ok(Self { q: gain("q_norm")?, k: gain("k_norm")?, eps })
    }
    /// Normalises the heads of Q and K in `[Q | K | V]`.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn forward(&self, cx: &PassContext<D>, qkv: Split<D>, heads: Heads) -> Result<(Split<D>, Saved<D>)> {
        let (y, r) = norm_heads(&qkv, heads, [&self.q.whole()?, &self.k.whole()?], self.eps);
        Ok((y, cx.keep((qkv, r))))
    }
    /// Returns the gradient of the input, and adds to the gradients of the gains.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn backward(&mut self, saved: Saved<D>, heads: Heads, dy: &Split<D>) -> Result<Split<D>> {
        let (qkv, r) = saved.open();
        norm_heads_backward(&qkv, heads, [&mut self.q, &mut self.k], &r, dy)
    }
    /// Appends its parameters to `into`.
    pub fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.extend([self.q.param(), self.k.param()]);
    }
}
