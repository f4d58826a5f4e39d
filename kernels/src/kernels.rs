//! The trait: every operation that layers are made of, each beside its backward.
use crate::sight::Sight;
use serde::{Deserialize, Serialize};
use tensor::{Device, Dropout, Index, View, ViewMut};

/// Whether a kernel replaces what it writes to or adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// y = …
    Set,
    /// y += …
    Add,
}

/// How attention's columns are cut into heads: `queries / keys` query heads share one key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads.
    pub keys: usize,
    /// Features of one head.
    pub dim: usize,
}

/// What an attention computes, whatever its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// The heads at hand: this rank's.
    pub heads: Heads,
    /// Which of the model's query heads is the first of them.
    pub first: usize,
    /// Which keys a query sees.
    pub sight: Sight,
    /// Dropout of the probabilities, after the softmax.
    pub dropout: Option<Dropout>,
}

/// An element-wise function between two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·Φ(x), Φ the normal distribution function. Source: Hendrycks, Gimpel, arXiv:1606.08415.
    Gelu,
    /// Its tanh form: x·sigmoid(a·(x + b·x³)), the constants [`tensor::Scalar::gelu_constants`].
    GeluTanh,
    /// x where it is positive, else 0.
    Relu,
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

/// One sequence's queries and the keys they may see: which rows, and where in the sequence these stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The queries' rows.
    pub query: Causal,
    /// The keys' and values' rows.
    pub key: Causal,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causal {
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

/// What a device computes. Shapes are the caller's duty (`layers::ops` checks them).
pub trait Kernels: Device {
    /// A right factor that is laid out once for many products.
    type Packed: Send + Sync;
    /// Numbers of a gradient that an optimizer takes together, in whole rows: a cache of each core holds them, with the
    /// values and two moments.
    const TOGETHER: usize = 1 << 16;
    /// C\[M,N\] (+)= A\[M,K\]·B\[K,N\], any strides; C's columns lie together.
    fn gemm(&self, c: ViewMut<Self>, a: View<Self>, b: View<Self>, write: Write);
    /// Lays out B\[K,N\], any strides, in memory of [`Kernels::packed_len`] numbers of its own.
    fn pack(&self, b: View<Self>) -> Self::Packed;
    /// C\[M,N\] (+)= A\[M,K\]·B\[K,N\] for a factor that was laid out; C's columns lie together.
    fn gemm_packed(&self, c: ViewMut<Self>, a: View<Self>, b: &Self::Packed, write: Write);
    /// Numbers that B\[k,n\] takes when it is laid out.
    fn packed_len(k: usize, n: usize) -> usize;
    /// y = value.
    fn fill(&self, y: ViewMut<Self>, value: Self::Elem);
    /// y = x.
    fn copy(&self, y: ViewMut<Self>, x: View<Self>);
    /// y += a.
    fn add(&self, y: ViewMut<Self>, a: View<Self>);
    /// y = the stabiliser of y and a ([`tensor::Scalar::stab`]), element by element.
    fn stab(&self, y: ViewMut<Self>, a: View<Self>);
    /// y\[B, N\] += row\[1, N\], to every row.
    fn add_row(&self, y: ViewMut<Self>, row: View<Self>);
    /// sum\[1, N\] += Σ over the rows of x\[B, N\].
    fn add_rows(&self, sum: ViewMut<Self>, x: View<Self>);
    /// Takes elements of x away and scales the others; its own backward. `tokens` cover all rows of the whole
    /// matrix, of which x holds those from `first_row` on (fewer or none where it is longer: the rest is padding
    /// and stays).
    fn dropout(&self, x: ViewMut<Self>, tokens: &[Causal], first_row: usize, dropout: &Dropout);

    /// Turns feature pairs (i, i + dim/2) of every head by the table's (cos | sin) of the row's position; an odd
    /// last feature stays. `tokens` cover all rows; `back`: the transpose.
    fn rotate(&self, x: ViewMut<Self>, table: View<Self>, tokens: &[Causal], dim: usize, back: bool);

    /// y = x · r · gain, r = rsqrt(mean(x²) + eps), one per row.
    fn rms_norm(&self, y: ViewMut<Self>, r: ViewMut<Self>, x: View<Self>, gain: View<Self>, eps: f64);
    /// dx of `rms_norm`, plus `skip` (the residual path's gradient) in the same pass; adds dgain.
    #[allow(clippy::too_many_arguments)] // three results and inputs that all are plain matrices
    fn rms_norm_backward(
        &self,
        dx: ViewMut<Self>,
        dgain: ViewMut<Self>,
        x: View<Self>,
        r: View<Self>,
        gain: View<Self>,
        dy: View<Self>,
        skip: Option<View<Self>>,
    );

    /// y = (x − mean) · r · gain + bias, r = rsqrt(variance + eps); `stats[B, 2]` become (mean, r).
    #[allow(clippy::too_many_arguments)] // two results and inputs that all are plain matrices
    fn layer_norm(
        &self,
        y: ViewMut<Self>,
        stats: ViewMut<Self>,
        x: View<Self>,
        gain: View<Self>,
        bias: View<Self>,
        eps: f64,
    );
    /// dx of `layer_norm`, plus `skip`; adds dgain and dbias.
    #[allow(clippy::too_many_arguments)] // as above
    fn layer_norm_backward(
        &self,
        dx: ViewMut<Self>,
        dgain_dbias: [ViewMut<Self>; 2],
        x: View<Self>,
        stats: View<Self>,
        gain: View<Self>,
        dy: View<Self>,
        skip: Option<View<Self>>,
    );

    /// h = f(x).
    fn activate(&self, h: ViewMut<Self>, x: View<Self>, f: Activation);
    /// dx = dh · f'(x).
    fn activate_backward(&self, dx: ViewMut<Self>, x: View<Self>, dh: View<Self>, f: Activation);
    /// h = gate · sigmoid(gate) · up.
    fn swiglu(&self, h: ViewMut<Self>, gate: View<Self>, up: View<Self>);
    /// dgate and dup of `swiglu`.
    fn swiglu_backward(
        &self,
        dgate: ViewMut<Self>,
        dup: ViewMut<Self>,
        gate: View<Self>,
        up: View<Self>,
        dh: View<Self>,
    );

    /// Adds blocks of keys to a running softmax.
    fn attention_block(
        &self,
        attend: &Attend,
        spans: &[Span],
        qkv: Qkv<Self>,
        run: Softmax<Self>,
        scratch: ViewMut<Self>,
    );
    /// out /= sum; the log-sum-exp goes to `max`.
    fn attention_finish(&self, heads: Heads, run: Softmax<Self>);
    /// delta\[B, queries\] = Σ o·do per head.
    fn attention_delta(&self, heads: Heads, delta: ViewMut<Self>, o: View<Self>, d_o: View<Self>);
    /// Adds one block's share to dq, dk, dv; `saved` is (log-sum-exp, delta), scores are computed again.
    #[allow(clippy::too_many_arguments)] // grouped as far as it reads well
    fn attention_block_backward(
        &self,
        attend: &Attend,
        spans: &[Span],
        qkv: Qkv<Self>,
        saved: (View<Self>, View<Self>),
        d_o: View<Self>,
        dqkv: [ViewMut<Self>; 3],
        scratch: ViewMut<Self>,
    );
    /// Numbers of scratch that the two attention kernels want, if no span has more keys than `keys`.
    fn attention_scratch(heads: Heads, keys: usize) -> usize;

    /// y = the table's row of each id; zero for ids outside the slice.
    fn embed(&self, y: ViewMut<Self>, table: View<Self>, ids: &Index<Self::Place>, slice: Slice);
    /// Adds each row of dy to its id's row, if that is in the slice.
    fn embed_backward(&self, dtable: ViewMut<Self>, dy: View<Self>, ids: &Index<Self::Place>, slice: Slice);

    /// Per row: the stabiliser of this rank's logits.
    fn row_stab(&self, m: ViewMut<Self>, logits: View<Self>);
    /// Per row: Σ exp(logit − m), the target's logit (0 if it lies elsewhere or is ignored) and, where `sums` has a
    /// third column, Σ logit.
    fn row_sums(
        &self,
        sums: ViewMut<Self>,
        logits: View<Self>,
        m: View<Self>,
        targets: &Index<Self::Place>,
        slice: Slice,
    );
    /// loss = Σ(lse − (1 − ε)·target's logit − ε/V·Σ logit + λ·lse²) / `mean_over`, over the rows whose target is not
    /// ignored; lse goes to `m`. `sums` has a third column where ε is not 0.
    fn cross_entropy(
        &self,
        loss: ViewMut<Self>,
        m: ViewMut<Self>,
        sums: View<Self>,
        targets: &Index<Self::Place>,
        terms: &LossTerms,
    );
    /// logits become (softmax·(1 + 2λ·lse) − (1 − ε)·one-hot − ε/V) / `mean_over`; 0 where the target is ignored.
    fn cross_entropy_backward(
        &self,
        logits: ViewMut<Self>,
        lse: View<Self>,
        targets: &Index<Self::Place>,
        slice: Slice,
        terms: &LossTerms,
    );

    /// out\[1,1\] += Σ x².
    fn add_norm2(&self, out: ViewMut<Self>, x: View<Self>);
    /// factor\[1,1\] = min(1, limit/√norm2).
    fn clip_factor(&self, factor: ViewMut<Self>, norm2: View<Self>, limit: f64);
    /// w −= lr · factor · g.
    fn sgd(&self, w: ViewMut<Self>, g: View<Self>, factor: View<Self>, lr: f64);
    /// One `AdamW` step on factor · g; `moments` are (m, v).
    fn adamw(
        &self,
        w: ViewMut<Self>,
        moments: (ViewMut<Self>, ViewMut<Self>),
        g: View<Self>,
        factor: View<Self>,
        constants: AdamW,
    );
}

/// What a device of numbers with an order computes beside [`Kernels`]. A field has no order, so it has none of this.
pub trait Selects: Kernels {
    /// Of every row of `x[B, N]` the k numbers that come first, in their order: to `values[B, k]` the numbers, to
    /// `columns[B·k]` where in the row they stand. First come those that are not finite, by column, so that none is
    /// passed over; then the others, the largest first, equal ones by column. k is at most N.
    fn top_k(&self, values: ViewMut<Self>, columns: &mut Index<Self::Place>, x: View<Self>);
}
