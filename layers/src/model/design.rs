//! What a model is built as, whichever kind: how it is cut into parts, what goes in, and what comes out.
use crate::{Balance, Experts, Shape};
use std::fmt;

/// A model: all that its parameters do not say.
#[derive(Clone, Debug, PartialEq)]
pub enum Design {
    /// A decoder-only transformer: token ids to logits, judged by cross-entropy.
    Transformer(Shape),
    /// Linear layers with `ReLU` between them: rows of features to logits, judged by cross-entropy.
    Classifier {
        /// Features of the input, of each layer between, and the classes.
        sizes: Vec<usize>,
    },
    /// Blocks of a transformer without embedding and head: rows of features to rows of as many, judged by the mean square of
    /// what is missing.
    Blocks(Shape),
}

impl From<Shape> for Design {
    fn from(shape: Shape) -> Self {
        Self::Transformer(shape)
    }
}
impl From<&Shape> for Design {
    fn from(shape: &Shape) -> Self {
        Self::Transformer(*shape)
    }
}
impl From<&Design> for Design {
    fn from(design: &Design) -> Self {
        design.clone()
    }
}

impl Design {
    /// The shape of its blocks, if it has such.
    pub fn shape(&self) -> Option<&Shape> {
        if let Self::Transformer(shape) | Self::Blocks(shape) = self { Some(shape) } else { None }
    }
    /// The same design where nothing is learnt. No loss is added for experts' sake, and sequences are not cut into slices, so
    /// experts see whole microbatches under every schedule.
    #[must_use]
    pub fn inferring(mut self) -> Self {
        if let Self::Transformer(Shape { experts: Some(experts), .. })
        | Self::Blocks(Shape { experts: Some(experts), .. }) = &mut self
        {
            *experts = Experts { capacity: None, forced: false, balance: Balance::default(), ..*experts };
        }
        self
    }
    /// Of a classifier's sizes, those that tensor ranks must divide.
    pub fn shared(&self) -> Vec<usize> {
        if let Self::Classifier { sizes } = self { shared(sizes) } else { Vec::new() }
    }
    /// How many stages a pipeline can have at most.
    pub fn parts(&self) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.blocks,
            Self::Classifier { sizes } => parts(sizes),
        }
    }
    /// Features of what enters a part, each row of it.
    pub fn width(&self, part: usize) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.width,
            Self::Classifier { sizes } => sizes.get(start(sizes, part)).copied().unwrap_or(0),
        }
    }
    /// Features of a row that enters the model; none where token ids do.
    pub fn features(&self) -> Option<usize> {
        if let Self::Transformer(_) = self { None } else { Some(self.width(0)) }
    }
    /// How many numbers come of a row: logits, or features.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Transformer(shape) => shape.vocabulary,
            Self::Classifier { sizes } => sizes.last().copied().unwrap_or(0),
            Self::Blocks(shape) => shape.width,
        }
    }
    /// Whether targets are rows of features, not ids.
    pub fn gives_rows(&self) -> bool {
        matches!(self, Self::Blocks(_))
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transformer(shape) => shape.fmt(f),
            Self::Blocks(shape) => write!(f, "bare blocks: {shape}"),
            Self::Classifier { sizes } => {
                let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
                write!(f, "a classifier of sizes {}", sizes.join("-"))
            }
        }
    }
}

/// How many parts there are between bars, the last layer counted.
pub fn parts(sizes: &[usize]) -> usize {
    sizes.len().saturating_sub(1) / 2 + 1
}

/// The first layer of a part.
pub fn start(sizes: &[usize], part: usize) -> usize {
    (2 * part).saturating_sub(sizes.len() % 2)
}

/// Of these sizes, those that the ranks must divide: between the two layers of a pair, and gathered.
pub fn shared(sizes: &[usize]) -> Vec<usize> {
    (0..parts(sizes) - 1).map(|part| sizes[start(sizes, part) + 1]).collect()
}
