//! What a decoder-only transformer is made of: sizes, and which of the field's variants each part is. Plain data, shared by
//! what computes a model, what proves it and the oracle that it is proven against.
//!
//! | file | holds |
//! |---|---|
//! | `experts.rs` | experts in place of a feed-forward |
//! | `features.rs` | the table of what a model may have: how it is said, who has it, how a model gets it |
//! | `words.rs` | a model in words, made of that table |
mod experts;
mod features;
mod words;

pub use experts::{Balance, Blocks, Experts, Groups, Scoring, SharedExpert};
pub use features::{ConfigField, FEATURES, Feature};
pub use words::counted;

use serde::{Deserialize, Serialize};
use tensor::{Rope, Scaling};

/// A model of the GPT-2, Llama, Mistral or Qwen families: all that its parameters do not say. Read from JSON, what is
/// left out is that of [`Shape::LLAMA`], so what was written before a field was added reads on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Features of the residual stream.
    pub width: usize,
    /// How many blocks.
    pub blocks: usize,
    /// Attention's heads, of the whole model.
    pub heads: Heads,
    /// Features inside the feed-forward.
    pub hidden: usize,
    /// How many different token ids.
    pub vocabulary: usize,
    /// The id of padding: its row of the embedding's table learns nothing from being read.
    pub padding: Option<usize>,
    /// ε of the norms.
    pub eps: f64,
    /// Whether the head uses the embedding's table.
    pub tied: bool,
    /// Which norm.
    pub norm: NormKind,
    /// How tokens know where they stand.
    pub positions: Positions,
    /// Which feed-forward.
    pub feed_forward: FeedForward,
    /// Experts in its place, if there are any.
    pub experts: Option<Experts>,
    /// Which linear layers have a bias.
    pub bias: Biases,
    /// Whether queries and keys are normalised head by head.
    pub head_norm: bool,
    /// Whether some blocks see the last tokens only.
    pub window: Option<Window>,
    /// Dropout while training.
    pub dropout: Rates,
    /// What the loss is, besides cross-entropy.
    pub loss: Objective,
}

/// How attention's columns are cut into heads: `queries / keys` query heads share one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key and value heads; they divide the query heads.
    pub keys: usize,
    /// Features of one head.
    pub dim: usize,
}

impl Heads {
    /// Features of a row `[Q | K | V]`: `(queries + 2·keys)·dim`.
    pub fn row(self) -> usize {
        (self.queries + 2 * self.keys) * self.dim
    }
    /// Features of a row `[Q]`, and of what the heads gather: `queries·dim`.
    pub fn gathered(self) -> usize {
        self.queries * self.dim
    }
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

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Root mean square, with a gain.
    Rms,
    /// Mean and variance, with a gain and a bias.
    Layer,
}

/// How tokens know where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Queries and keys turn.
    Rotary(Rope),
    /// A table of so many rows is added to the embedding.
    Learned(usize),
}

/// Which feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// down(gate · sigmoid(gate) · up).
    #[serde(rename = "swiglu")]
    SwiGlu,
    /// down(f(up)).
    Plain(Activation),
}

/// Which linear layers have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Biases {
    /// That of queries, keys and values.
    pub qkv: bool,
    /// Attention's output.
    pub out: bool,
    /// Both of the feed-forward.
    pub mlp: bool,
}

/// Attention to the last tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// How many, a token itself counted.
    pub size: usize,
    /// How many of a sequence's first tokens are seen besides.
    pub sinks: usize,
    /// Blocks from this one on have the window; those before see everything.
    pub from: usize,
}

/// Dropout rates while training, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    /// Of the embedding.
    pub embedding: f64,
    /// Of attention's probabilities.
    pub attention: f64,
    /// Of what attention and feed-forward add to the stream.
    pub residual: f64,
}

/// What the loss is, besides cross-entropy.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Label smoothing: a target is `1 − ε` of itself and ε of all ids alike.
    pub smoothing: f64,
    /// λ: λ·lse² is added for each token.
    pub z: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self::LLAMA
    }
}

impl Shape {
    /// The smallest model of the Llama family; others are written `Shape { width: 8, ..Shape::LLAMA }`.
    pub const LLAMA: Shape = Shape {
        width: 2,
        blocks: 1,
        heads: Heads { queries: 1, keys: 1, dim: 2 },
        hidden: 2,
        vocabulary: 2,
        padding: None,
        eps: 1e-5,
        tied: false,
        norm: NormKind::Rms,
        positions: Positions::Rotary(Rope { base: 10_000.0, scaling: Scaling::None }),
        feed_forward: FeedForward::SwiGlu,
        experts: None,
        bias: Biases { qkv: false, out: false, mlp: false },
        head_norm: false,
        window: None,
        dropout: Rates { embedding: 0.0, attention: 0.0, residual: 0.0 },
        loss: Objective { smoothing: 0.0, z: 0.0 },
    };
    /// The smallest model of the GPT-2 family.
    pub const GPT2: Shape = Shape {
        norm: NormKind::Layer,
        positions: Positions::Learned(1024),
        feed_forward: FeedForward::Plain(Activation::GeluTanh),
        bias: Biases { qkv: true, out: true, mlp: true },
        tied: true,
        ..Shape::LLAMA
    };

    /// The experts of a block, if it has such.
    pub fn experts(&self, block: usize) -> Option<Experts> {
        self.experts.filter(|experts| !experts.dense.contains(block))
    }
    /// How many positions there are, if they are counted.
    pub fn context(&self) -> Option<usize> {
        if let Positions::Learned(n) = self.positions { Some(n) } else { None }
    }
}
