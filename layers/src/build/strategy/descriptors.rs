//! Descriptions of layers to build, their sizes and names, passed from a model to the strategies.
use crate::{Biases, BlockShape, Experts, FeedForward, Latent, NormKind, Objective, Shape};
use comm::Axis;
use kernels::{Heads, Kernels, Mask, ScoreTerms};
use ops::{Rotary, Section};

/// A column layer to build: parameter `name[I, Σ sections]`, and `name.bias` if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `I`.
    pub inputs: usize,
    /// Sections of the output, each cut on its own.
    pub sections: &'a [Section],
    /// True if it has a bias.
    pub bias: bool,
}

/// A row layer to build: parameter `name[I, O]`, and `name.bias` if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[I, O]`.
    pub sizes: [usize; 2],
    /// True if it has a bias.
    pub bias: bool,
}

/// A norm to build: parameter `name[1, D]`, and `name.bias` if its kind has one.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Kind of norm.
    pub kind: NormKind,
    /// Its name.
    pub name: &'a str,
    /// `D`.
    pub width: usize,
    /// ε, inside the root.
    pub eps: f64,
}

/// A block's attention to build: parameters `name.qkv[D, (Hq+2Hk)·d]` and `name.out[Hq·d, D]`, their biases,
/// and where heads have norms `name.q_norm` and `name.k_norm`; or those of latents.
#[derive(Clone, Copy)]
pub struct Attention<'a, D: Kernels> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `D`.
    pub width: usize,
    /// Heads of the whole model.
    pub heads: Heads,
    /// Scores, besides their mask.
    pub scores: ScoreTerms,
    /// Mask: the keys that each query sees.
    pub mask: Mask,
    /// Rotary embedding of queries and keys, if any.
    pub rotary: Option<&'a Rotary<D>>,
    /// ε of the norms of query and key heads, if they have any.
    pub head_norm: Option<f64>,
    /// ε of the norms of all queries together and of all keys, if they have these.
    pub joint_norm: Option<f64>,
    /// Latents of keys, values and maybe queries, if it has any.
    pub latent: Option<Latent>,
    /// The products that have a bias.
    pub bias: Biases,
    /// Dropout rate of the probabilities.
    pub rate: f64,
    /// Number of the block in the model: the cache stores keys and values under it.
    pub block: usize,
}

impl<'a, D: Kernels> Attention<'a, D> {
    /// Describes the attention of a transformer's block, whose number is `block`.
    #[must_use]
    pub fn of(
        axis: Axis,
        name: &'a str,
        of: &BlockShape,
        block: usize,
        rotary: Option<&'a Rotary<D>>,
    ) -> Self {
        let BlockShape { width, heads, scores, bias, .. } = *of;
        let mask = Mask::of(of.window);
        let rate = of.dropout.attention;
        let [head_norm, joint_norm] = [of.head_norm, of.joint_norm].map(|has| has.then_some(of.eps));
        Self {
            axis,
            name,
            width,
            heads,
            scores,
            mask,
            rotary,
            head_norm,
            joint_norm,
            latent: of.latent,
            bias,
            rate,
            block,
        }
    }
}

/// The core of an attention to build.
#[derive(Clone, Copy, Debug)]
pub struct Core<'a> {
    /// The axis whose ranks have other heads.
    pub axis: Axis,
    /// The name of its scores, which seeds their dropout, and that of their sinks, `name.sinks[1, Hq]`.
    pub name: &'a str,
    /// Number of the block in the model: the cache stores keys and values under it.
    pub block: usize,
    /// This rank's heads.
    pub heads: Heads,
    /// Index of the first of them among the model's query heads.
    pub first: usize,
    /// Scores, besides their mask.
    pub scores: ScoreTerms,
    /// Mask: the keys that each query sees.
    pub mask: Mask,
    /// Dropout rate of the probabilities.
    pub rate: f64,
}

impl<'a> Core<'a> {
    /// Describes the core of a model of these heads alone, by the usual scores without dropout.
    #[must_use]
    pub fn of(name: &'a str, heads: Heads, mask: Mask) -> Self {
        let scores = ScoreTerms::NONE;
        Self { axis: Axis::Tp, name, block: 0, heads, first: 0, scores, mask, rate: 0.0 }
    }
}

/// A block's feed-forward to build: parameters `name.gate_up` or `name.up`, and `name.down`, and their
/// biases.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// Kind of feed-forward.
    pub kind: FeedForward,
    /// `[D, F]`.
    pub sizes: [usize; 2],
    /// True if it has biases.
    pub bias: bool,
    /// The experts that replace it, if any.
    pub experts: Option<Experts>,
}

/// An embedding to build: parameter `name[V, D]`, and `positions[context, D]` if positions are learned.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[V, D]`.
    pub sizes: [usize; 2],
    /// The id of padding, whose row gets no gradient from being read.
    pub padding: Option<usize>,
    /// Number of learned positions, if any.
    pub context: Option<usize>,
    /// Number whose root multiplies the rows, if any.
    pub root: Option<usize>,
    /// Dropout rate.
    pub rate: f64,
    /// True if a head is tied to its table.
    pub tied: bool,
}

/// A head to build: parameter `name[D, V]` unless it is tied, and `name.bias` if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The axis whose ranks split it.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[D, V]`.
    pub sizes: [usize; 2],
    /// The norm before it, if any.
    pub norm: Option<Norm<'a>>,
    /// True if its weight is the embedding's table.
    pub tied: bool,
    /// True if it has a bias.
    pub bias: bool,
    /// Terms that training adds to the loss.
    pub objective: Objective,
    /// Cap of the logits, if any.
    pub cap: Option<f64>,
}

impl Head<'_> {
    /// Describes the head of a transformer.
    pub fn of(axis: Axis, shape: &Shape) -> Self {
        let Shape { width, vocabulary, tied, loss: objective, logit_cap: cap, .. } = *shape;
        Self {
            axis,
            name: "head",
            sizes: [width, vocabulary],
            norm: Some(Norm { kind: shape.norm, name: "norm", width, eps: shape.eps }),
            tied,
            bias: false,
            objective,
            cap,
        }
    }
}
