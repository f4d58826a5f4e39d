//! What is to be built: a layer's sizes and names, as a model asks for it and a strategy is told.
use crate::param::placement::Section;
use crate::{Biases, Experts, FeedForward, NormKind, Objective, Rotary, Shape};
use comm::Axis;
use kernels::{Heads, Kernels, Mask};

/// A column layer to be built: parameter `name[I, Σ sections]`, and `name.bias` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `I`.
    pub inputs: usize,
    /// Each cut on its own.
    pub sections: &'a [Section],
    /// Whether it has a bias.
    pub bias: bool,
}

/// A row layer to be built: parameter `name[I, O]`, and `name.bias` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[I, O]`.
    pub sizes: [usize; 2],
    /// Whether it has a bias.
    pub bias: bool,
}

/// A norm to be built: parameter `name[1, D]`, and `name.bias` where its kind has one.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Which.
    pub kind: NormKind,
    /// Its name.
    pub name: &'a str,
    /// `D`.
    pub width: usize,
    /// ε, inside the root.
    pub eps: f64,
}

/// A block's attention to be built: parameters `name.qkv[D, (Hq+2Hk)·d]` and `name.out[Hq·d, D]`, their biases, and where heads
/// have norms `name.q_norm` and `name.k_norm`.
#[derive(Clone, Copy)]
pub struct Attention<'a, D: Kernels> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `D`.
    pub width: usize,
    /// Query and KV heads, of the whole model, and how many features each has: of a query, a key and a value alike.
    pub heads: Heads,
    /// Which keys a query sees.
    pub mask: Mask,
    /// What turns queries and keys by their positions, if anything does.
    pub rotary: Option<&'a Rotary<D>>,
    /// ε of the norms of query and key heads, if they have any.
    pub head_norm: Option<f64>,
    /// Which products have a bias.
    pub bias: Biases,
    /// The rate of dropout of the probabilities.
    pub rate: f64,
    /// Which block of the model: where a cache has its keys and values.
    pub block: usize,
}

impl<'a, D: Kernels> Attention<'a, D> {
    /// That of a transformer's block.
    #[must_use]
    pub fn of(axis: Axis, name: &'a str, shape: &Shape, block: usize, rotary: Option<&'a Rotary<D>>) -> Self {
        let Shape { width, heads, bias, .. } = *shape;
        let (mask, rate) = (Mask::of(shape, block), shape.dropout.attention);
        let head_norm = shape.head_norm.then_some(shape.eps);
        Self { axis, name, width, heads, mask, rotary, head_norm, bias, rate, block }
    }
}

/// The core of an attention to be built.
#[derive(Clone, Copy, Debug)]
pub struct Core<'a> {
    /// The name of its scores, which dropout is drawn by.
    pub name: &'a str,
    /// Which block of the model: where a cache has its keys and values.
    pub block: usize,
    /// This rank's heads.
    pub heads: Heads,
    /// Which of the model's query heads is the first of them.
    pub first: usize,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The rate of dropout of the probabilities.
    pub rate: f64,
}

/// A block's feed-forward to be built: parameters `name.gate_up` or `name.up`, and `name.down`, and their biases.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// Which.
    pub kind: FeedForward,
    /// `[D, F]`.
    pub sizes: [usize; 2],
    /// Whether it has biases.
    pub bias: bool,
    /// The experts that stand in its place, if there are any.
    pub experts: Option<Experts>,
}

/// An embedding to be built: parameter `name[V, D]`, and `positions[context, D]` where positions are learned.
#[derive(Clone, Copy, Debug)]
pub struct Embedding<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[V, D]`.
    pub sizes: [usize; 2],
    /// The id of padding, whose row learns nothing from being read.
    pub padding: Option<usize>,
    /// How many positions are learned, if they are.
    pub context: Option<usize>,
    /// The rate of dropout.
    pub rate: f64,
    /// Whether a head is tied to its table.
    pub tied: bool,
}

/// A head to be built: parameter `name[D, V]` unless it is tied, and `name.bias` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[D, V]`.
    pub sizes: [usize; 2],
    /// The norm in front of it, if there is one.
    pub norm: Option<Norm<'a>>,
    /// Whether its weight is the embedding's table.
    pub tied: bool,
    /// Whether it has a bias.
    pub bias: bool,
    /// What training adds to the loss.
    pub objective: Objective,
}

impl Head<'_> {
    /// A transformer's.
    pub fn of(axis: Axis, shape: &Shape) -> Self {
        let Shape { width, vocabulary, tied, loss: objective, .. } = *shape;
        let norm = Norm { kind: shape.norm, name: "norm", width, eps: shape.eps };
        Self {
            axis,
            name: "head",
            sizes: [width, vocabulary],
            norm: Some(norm),
            tied,
            bias: false,
            objective,
        }
    }
}
