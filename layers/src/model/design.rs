//! The design of a model of any kind: its parts, inputs and outputs.
use crate::{Balance, Experts, Shape};
use std::fmt;

/// A model without its parameters' values.
#[derive(Clone, Debug, PartialEq)]
pub enum Design {
    /// A decoder-only transformer: token ids to logits, with a cross-entropy loss.
    Transformer(Shape),
    /// Linear layers with `ReLU` between them: rows of features to logits, with a cross-entropy loss.
    Classifier {
        /// Features of the input and of each layer between, and the number of classes.
        sizes: Vec<usize>,
    },
    /// Blocks of a transformer without embedding and head: rows of features to rows of the same width, with
    /// the mean squared error (MSE) as loss.
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
    /// The shape of its blocks, if it has blocks.
    pub fn shape(&self) -> Option<&Shape> {
        if let Self::Transformer(shape) | Self::Blocks(shape) = self { Some(shape) } else { None }
    }
    /// Returns the design as inference uses it, for checking whether a layout fits. Inference adds no
    /// auxiliary loss and never cuts sequences into slices, so the settings of experts that need whole
    /// microbatches (capacity, forced routing, balance) restrict no schedule and are cleared.
    #[must_use]
    pub fn inferring(mut self) -> Self {
        if let Self::Transformer(Shape { experts: Some(experts), .. })
        | Self::Blocks(Shape { experts: Some(experts), .. }) = &mut self
        {
            *experts = Experts { capacity: None, forced: false, balance: Balance::default(), ..*experts };
        }
        self
    }
    /// Sizes of a classifier that the tensor ranks must divide; empty for other designs.
    pub fn shared(&self) -> Vec<usize> {
        if let Self::Classifier { sizes } = self { shared(sizes) } else { Vec::new() }
    }
    /// Number of parts that a pipeline can cut the model into: the largest number of stages.
    pub fn parts(&self) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.blocks,
            Self::Classifier { sizes } => parts(sizes),
        }
    }
    /// Number of features of each row that enters a part.
    pub fn width(&self, part: usize) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.width,
            Self::Classifier { sizes } => sizes.get(start(sizes, part)).copied().unwrap_or(0),
        }
    }
    /// Number of features of each row that enters the model; `None` if token ids enter.
    pub fn features(&self) -> Option<usize> {
        if let Self::Transformer(_) = self { None } else { Some(self.width(0)) }
    }
    /// Number of output values per row: logits, or features.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Transformer(shape) => shape.vocabulary,
            Self::Classifier { sizes } => sizes.last().copied().unwrap_or(0),
            Self::Blocks(shape) => shape.width,
        }
    }
    /// Returns whether targets are rows of features instead of ids.
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

/// Number of parts of a classifier, the last layer's included.
pub fn parts(sizes: &[usize]) -> usize {
    sizes.len().saturating_sub(1) / 2 + 1
}

/// Index of the first layer of a part.
pub fn start(sizes: &[usize], part: usize) -> usize {
    (2 * part).saturating_sub(sizes.len() % 2)
}

/// Returns the sizes that the ranks must divide: between the two layers of a pair, or gathered.
pub fn shared(sizes: &[usize]) -> Vec<usize> {
    (0..parts(sizes) - 1).map(|part| sizes[start(sizes, part) + 1]).collect()
}
