//! A model: its sizes, and the kind of each part.
use crate::{Blocks, Experts, Heads, Latent, Pattern, ScoreTerms};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use tensor::{Rope, Scaling};

/// A model of the GPT-2 or Llama families and their kin: everything but its parameters. It says what all
/// blocks have, and its [pattern](Pattern) which of them differ; ask for a [block](Shape::block) to know it.
/// A field that JSON leaves out has its value in [`Shape::LLAMA`], so files that are older than a field can
/// still be read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, remote = "Self")]
pub struct Shape {
    /// Features of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Attention heads of the whole model.
    pub heads: Heads,
    /// Scores of attention.
    #[serde(skip_serializing_if = "is_usual")]
    pub scores: ScoreTerms,
    /// Latents that attention computes keys, values and maybe queries from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    /// Features inside the feed-forward.
    pub hidden: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Padding token id; the embedding lookup gives its row no gradient.
    pub padding: Option<usize>,
    /// ε of the norms.
    pub eps: f64,
    /// True if the head uses the embedding's table.
    pub tied: bool,
    /// Kind of norm.
    pub norm: NormKind,
    /// Places of the norms of a block.
    #[serde(skip_serializing_if = "is_usual")]
    pub norms: NormPlaces,
    /// Number whose root multiplies the embedding, if there is one. Source: Vaswani et al., §3.4,
    /// arXiv:1706.03762.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_root: Option<usize>,
    /// Cap c of logits, if there is one: a logit z becomes c·tanh(z/c). Source: Gemma Team, "Gemma 2", §2,
    /// arXiv:2408.00118.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_cap: Option<f64>,
    /// Kind of position encoding.
    pub positions: Positions,
    /// Kind of feed-forward.
    pub feed_forward: FeedForward,
    /// Experts in place of the feed-forward.
    pub experts: Option<Experts>,
    /// Biases of linear layers.
    pub bias: Biases,
    /// True if queries and keys are normalised per head.
    pub head_norm: bool,
    /// True if the queries of a token are normalised together, and so are its keys.
    #[serde(skip_serializing_if = "is_usual")]
    pub joint_norm: bool,
    /// Attention window.
    pub window: Option<Window>,
    /// The blocks that differ from the others.
    pub pattern: Pattern,
    /// Dropout while training.
    pub dropout: Rates,
    /// Additions to the cross-entropy loss.
    pub loss: Objective,
}

/// An element-wise function between the two products of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·Φ(x), Φ the normal distribution function. Source: Hendrycks, Gimpel, arXiv:1606.08415.
    Gelu,
    /// The tanh form of GELU: x·sigmoid(a·(x + b·x³)), with the constants [`tensor::Scalar::gelu_constants`].
    GeluTanh,
    /// x where it is positive, else 0.
    Relu,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Root mean square, with a gain.
    Rms,
    /// Mean and variance, with a gain and a bias.
    Layer,
}

/// A kind of position encoding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// Rotary: queries and keys are rotated by angles that depend on the position.
    Rotary(Rope),
    /// Learned: a table with this many rows is added to the embedding.
    Learned(usize),
}

/// A kind of feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// down(f(up)).
    Plain(Activation),
    /// down(f(gate, up)).
    #[serde(untagged)]
    Gated(Gate),
}

/// An element-wise function of gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// gate · sigmoid(gate) · up. Source: Shazeer, "GLU variants improve transformer", arXiv:2002.05202.
    #[serde(rename = "swiglu")]
    Silu,
    /// GELU(gate) · up, with the tanh form of GELU. Source: as before.
    #[serde(rename = "geglu")]
    GeluTanh,
    /// g · sigmoid(1.702·g) · (u + 1), with g = min(gate, 7) and u = up between −7 and 7. Source: `OpenAI`,
    /// "gpt-oss", §2.1, arXiv:2508.10925.
    #[serde(rename = "clamped_swiglu")]
    Clamped,
}

impl FeedForward {
    /// The usual feed-forward of Llama.
    pub const SWIGLU: Self = Self::Gated(Gate::Silu);
}

/// Places of the norms of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlaces {
    /// Before attention and before the feed-forward.
    #[default]
    Before,
    /// After both, before their outputs are added to the residual stream. Source: `OLMo` Team, "2 `OLMo` 2
    /// furious", §3.3.1, arXiv:2501.00656.
    After,
    /// Before and after both. Source: Gemma Team, "Gemma 2", §2, arXiv:2408.00118.
    Both,
}

impl NormPlaces {
    /// Returns true if a norm is before a part.
    #[must_use]
    pub fn before(self) -> bool {
        self != Self::After
    }
    /// Returns true if a norm is after a part.
    #[must_use]
    pub fn after(self) -> bool {
        self != Self::Before
    }
}

/// The linear layers that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// Attention's output.
    pub out: bool,
    /// Both layers of the feed-forward.
    pub mlp: bool,
}

/// Sliding-window attention: each token attends to the last tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Number of tokens in the window, the token itself included.
    pub size: usize,
    /// Number of tokens at the start of the sequence that stay visible (attention sinks).
    pub sinks: usize,
}

/// Dropout rates while training, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    /// Rate on the embedding.
    pub embedding: f64,
    /// Rate on the attention probabilities.
    pub attention: f64,
    /// Rate on the outputs of attention and feed-forward, before they are added to the residual stream.
    pub residual: f64,
}

/// Additions to the cross-entropy loss.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Label smoothing ε: a target is `1 − ε` of itself plus ε spread evenly over all ids.
    pub smoothing: f64,
    /// Coefficient λ of the z-loss: λ·lse² is added for each token.
    pub z: f64,
}

/// Returns true for a value that files leave out.
pub(crate) fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for Shape {
    /// Also reads older files, where the experts list the `dense` blocks, and a window has its first block,
    /// `from`.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(from)?;
        let mut older = |of: &str, key: &str| fields.get_mut(of)?.as_object_mut()?.remove(key);
        let dense = older("experts", "dense");
        let first = older("window", "from");
        let mut shape = Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)?;
        if let Some(dense) = dense {
            shape.pattern.dense = Blocks::deserialize(dense).map_err(D::Error::custom)?;
        }
        if let Some(first) = first {
            let first = usize::deserialize(first).map_err(D::Error::custom)?;
            shape.pattern.whole = (0..first.min(Blocks::MOST)).collect();
        }
        Ok(shape)
    }
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
        heads: Heads::new(1, 1, 2),
        scores: ScoreTerms::NONE,
        latent: None,
        hidden: 2,
        vocabulary: 2,
        padding: None,
        eps: 1e-5,
        tied: false,
        norm: NormKind::Rms,
        norms: NormPlaces::Before,
        embedding_root: None,
        logit_cap: None,
        positions: Positions::Rotary(Rope { base: 10_000.0, scaling: Scaling::None }),
        feed_forward: FeedForward::SWIGLU,
        experts: None,
        bias: Biases { qkv: false, out: false, mlp: false },
        head_norm: false,
        joint_norm: false,
        window: None,
        pattern: Pattern::NONE,
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

    /// Returns a sentence on numbers or parts of attention that cannot be, or not together, if there are any.
    #[must_use]
    pub fn attention_conflict(&self) -> Option<String> {
        let parts = [
            (self.bias.qkv, "biases of queries, keys and values"),
            (self.head_norm || self.joint_norm, "norms of heads"),
            (self.scores.sinks, "sinks of heads"),
        ];
        let both = (self.head_norm && self.joint_norm).then(|| {
            "queries and keys are normalised head by head or together; choose one of the two".into()
        });
        both.or_else(|| self.scores.conflict(self.heads)).or_else(|| self.latent?.conflict(self.heads, parts))
    }
    /// Returns the shape for texts that reach this number of positions ([`Rope::reaching`]).
    #[must_use]
    pub fn reaching(mut self, positions: usize) -> Self {
        if let Positions::Rotary(rope) = &mut self.positions {
            *rope = rope.reaching(positions);
        }
        self.pattern.other_rope = self.pattern.other_rope.map(|rope| rope.reaching(positions));
        self
    }
    /// Returns the number of learned positions; `None` for a rotary model.
    pub fn context(&self) -> Option<usize> {
        if let Positions::Learned(n) = self.positions { Some(n) } else { None }
    }
}
