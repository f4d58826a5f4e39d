//! What kernels are told beside matrices: heads, tokens, constants.
use crate::Mask;
use shape::Heads;
use tensor::{Device, Dropout, Index, Noise, Place, View, ViewMut};

/// Whether a kernel replaces what it writes to or adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// y = …
    Set,
    /// y += …
    Add,
}

/// What an attention computes, whatever its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// The heads at hand: this rank's.
    pub heads: Heads,
    /// Which of the model's query heads is the first of them.
    pub first: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Dropout of the probabilities, after the softmax.
    pub dropout: Option<Dropout>,
}

/// A loss: cross-entropy and its additions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossTerms {
    /// How many targets of the step count: what the loss is a mean over.
    pub mean_over: usize,
    /// ε: a target is `1 − ε` of itself and ε of all ids alike. Source: Szegedy et al., §7, arXiv:1512.00567.
    pub smoothing: f64,
    /// λ: λ·lse² is added. Source: Chowdhery et al., "`PaLM`", §5, arXiv:2204.02311.
    pub z: f64,
    /// How many ids there are, on all ranks together.
    pub vocabulary: usize,
}

/// How a router scores experts, chooses, and weighs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterTerms {
    /// How many experts a row is handed to.
    pub chosen: usize,
    /// Whether a score is the logit's sigmoid, not the softmax over all experts.
    pub sigmoid: bool,
    /// Whether gates are divided by their sum.
    pub normalize: bool,
    /// What gates are multiplied by, after that.
    pub scale: f64,
    /// How many groups of consecutive experts there are, and from how many of them a row chooses.
    pub groups: Option<[usize; 2]>,
}

/// What is added to the scores by which rows choose experts.
pub struct RouterNoise<'a, P: Place> {
    /// The noise; an expert is a feature.
    pub noise: Noise,
    /// The sequences' tokens.
    pub tokens: &'a Index<P>,
    /// Which of these is the first row.
    pub first: usize,
}

/// What a router's loss weighs the scores of rows with.
pub struct RouterBalance<'a, D: Device> {
    /// `[sequences, experts]`.
    pub weights: View<'a, D>,
    /// The sequences' tokens.
    pub tokens: &'a Index<D::Place>,
    /// Which of these is the first row.
    pub first: usize,
    /// `[1, 1]`: what each row's squared log-sum-exp is weighed with.
    pub z: View<'a, D>,
}

/// One sequence's queries and the keys they may see: which rows, and where in the sequence these stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The queries' rows.
    pub query: Segment,
    /// The keys' and values' rows.
    pub key: Segment,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The row of the first.
    pub row: usize,
    /// How many.
    pub len: usize,
    /// The first one's position in its sequence.
    pub position: usize,
    /// Which sequence of the step: what dropout tells sequences apart by.
    pub sequence: usize,
}

/// A rank's rows of a table that is split by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first of them in the whole table.
    pub first: usize,
    /// How many.
    pub len: usize,
}

impl Slice {
    /// Where a row of the whole table lies in this slice.
    #[inline(always)]
    pub fn local(self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|&i| i < self.len)
    }
}

/// Queries `[B, queries·dim]`, keys and values `[B, keys·dim]`.
pub struct Qkv<'a, D: Device> {
    /// Queries.
    pub q: View<'a, D>,
    /// Keys.
    pub k: View<'a, D>,
    /// Values.
    pub v: View<'a, D>,
}

/// A softmax that is still running: `out[B, queries·dim]` not yet divided by `sum[B, queries]`, both stabilised
/// by `max[B, queries]`. A row that saw no key yet has `max` −∞ and `sum` 0.
pub struct Softmax<'a, D: Device> {
    /// Σ e^(s − max)·v.
    pub out: ViewMut<'a, D>,
    /// The stabiliser.
    pub max: ViewMut<'a, D>,
    /// Σ e^(s − max).
    pub sum: ViewMut<'a, D>,
}

/// Constants of one `AdamW` step. Source: Loshchilov, Hutter, "Decoupled weight decay regularization",
/// Algorithm 2, arXiv:1711.05101.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay, times the learning rate.
    pub decay: f64,
    /// Which step this is, from 1.
    pub step: usize,
}
