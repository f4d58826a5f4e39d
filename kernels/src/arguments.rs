//! Arguments of kernels other than matrices: heads, tokens, constants.
use crate::Mask;
use shape::{Heads, ScoreTerms};
use tensor::{Device, Dropout, Index, Noise, Place, Scalar, View, ViewMut};

/// Mode of a kernel: replace the values that it writes to, or add to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// y = …
    Set,
    /// y += …
    Add,
}

/// Functions of the products of queries and keys that make them scores of a softmax: in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Products are divided by the root of this number.
    pub divisor: usize,
    /// Factor of the products, besides.
    pub factor: f64,
    /// Cap c, if there is one: a score s becomes c·tanh(s/c). Source: Gemma Team, "Gemma 2", §2,
    /// arXiv:2408.00118.
    pub cap: Option<f64>,
    /// Keys that a query sees.
    pub mask: Mask,
}

impl Scores {
    /// Returns the scores of these heads under a mask.
    #[must_use]
    pub const fn of(heads: Heads, terms: ScoreTerms, mask: Mask) -> Self {
        let divisor = if let Some(divisor) = terms.divisor { divisor } else { heads.dim };
        let factor = if let Some(factor) = terms.factor { factor } else { 1.0 };
        Self { divisor, factor, cap: terms.cap, mask }
    }
    /// Returns the number that multiplies products.
    #[must_use]
    pub fn scale<S: Scalar>(&self) -> S {
        S::inv_sqrt(self.divisor) * S::from_f64(self.factor)
    }
}

/// Settings of an attention, for any dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Heads of this rank.
    pub heads: Heads,
    /// Index in the model of this rank's first query head.
    pub first: usize,
    /// Functions of the products of queries and keys.
    pub scores: Scores,
    /// Dropout of the probabilities, after the softmax.
    pub dropout: Option<Dropout>,
}

impl Attend {
    /// Returns the attention of these heads, the first of a model, by the usual scores under a mask, without
    /// dropout.
    #[must_use]
    pub const fn of(heads: Heads, mask: Mask) -> Self {
        Self { heads, first: 0, scores: Scores::of(heads, ScoreTerms::NONE, mask), dropout: None }
    }
}

/// Number of targets that a loss is the mean over, and the power of two that multiplies it: see
/// `ops/src/optimizer/loss_scale.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeanOver {
    /// Number of targets.
    pub targets: usize,
    /// Logarithm of the loss scale, to the base 2.
    pub log2: u32,
}

impl MeanOver {
    /// The mean over so many targets, not scaled.
    pub const fn of(targets: usize) -> Self {
        Self { targets, log2: 0 }
    }
    /// Returns the share of a target in the loss: scale ÷ targets, or 0 if there are none.
    pub fn share<S: Scalar>(self) -> S {
        if self.targets == 0 {
            S::ZERO
        } else {
            loss_scale::<S>(self.log2) * S::from_usize(self.targets).inv()
        }
    }
}

/// Returns the loss scale with this logarithm to the base 2.
pub fn loss_scale<S: Scalar>(log2: u32) -> S {
    S::from_usize(2).pow(log2 as usize)
}

/// Cross-entropy loss and its additions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerms {
    /// The targets of the step that are not ignored.
    pub mean_over: MeanOver,
    /// ε: a target is `1 − ε` of itself and ε of all ids alike. Source: Szegedy et al., §7, arXiv:1512.00567.
    pub smoothing: f64,
    /// λ: λ·lse² is added. Source: Chowdhery et al., "`PaLM`", §5, arXiv:2204.02311.
    pub z: f64,
    /// Vocabulary size, over all ranks.
    pub vocabulary: usize,
    /// Cap of the logits, which they have already.
    pub cap: Option<f64>,
}

/// Settings of a router: its scores, its choice and its gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterTerms {
    /// Number of experts per row.
    pub chosen: usize,
    /// True if a score is the logit's sigmoid, false if it is the softmax over all experts.
    pub sigmoid: bool,
    /// True if gates are divided by their sum.
    pub normalize: bool,
    /// Factor of the gates, after that division.
    pub scale: f64,
    /// Number of groups of consecutive experts, and number of groups that a row chooses from.
    pub groups: Option<[usize; 2]>,
}

/// Noise that is added to the scores by which rows choose experts.
pub struct RouterNoise<'a, P: Place> {
    /// The noise; its feature is the expert.
    pub noise: Noise,
    /// Tokens of the sequences.
    pub tokens: &'a Index<P>,
    /// Index in `tokens` of the first row's token.
    pub first: usize,
}

/// Weights of the scores in a router's loss.
pub struct RouterBalance<'a, D: Device> {
    /// Weights `[sequences, experts]`.
    pub weights: View<'a, D>,
    /// Tokens of the sequences.
    pub tokens: &'a Index<D::Place>,
    /// Index in `tokens` of the first row's token.
    pub first: usize,
    /// Weight `[1, 1]` of each row's squared log-sum-exp.
    pub z: View<'a, D>,
}

/// A rank's rows of a table that is split by rows, such as a vocabulary shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShard {
    /// Index of the first row in the whole table.
    pub first: usize,
    /// Number of rows.
    pub len: usize,
}

impl RowShard {
    /// Returns the index in this shard of a row of the whole table.
    #[inline(always)]
    pub fn local(self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|&i| i < self.len)
    }
}

/// Queries `[B, queries·dim]`, keys `[B, keys·dim]` and values `[B, keys·value]`.
pub struct Qkv<'a, D: Device> {
    /// Queries.
    pub q: View<'a, D>,
    /// Keys.
    pub k: View<'a, D>,
    /// Values.
    pub v: View<'a, D>,
}

/// A running softmax: `out[B, queries·value]` is not yet divided by `sum[B, queries]`; both are stabilised by
/// `max[B, queries]`. A row that has seen no key yet has `max` −∞ and `sum` 0.
pub struct RunningSoftmax<'a, D: Device> {
    /// Σ e^(s − max)·v.
    pub out: ViewMut<'a, D>,
    /// The stabiliser.
    pub max: ViewMut<'a, D>,
    /// Σ e^(s − max).
    pub sum: ViewMut<'a, D>,
}
