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
    /// Returns the design for texts that reach this number of positions ([`Shape::reaching`]).
    #[must_use]
    pub fn reaching(mut self, positions: usize) -> Self {
        if let Self::Transformer(shape) | Self::Blocks(shape) = &mut self {
            *shape = shape.reaching(positions);
        }
        self
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
    /// Sizes of a classifier that the tensor ranks must divide, between the two layers of a pair or gathered;
    /// empty for other designs.
    pub fn shared(&self) -> Vec<usize> {
        let Self::Classifier { sizes } = self else { return Vec::new() };
        (0..self.parts(2) - 1).map(|part| sizes[self.start(part, 2) + 1]).collect()
    }
    /// Number of parts that a pipeline can cut the model into, the largest number of stages: its blocks, or a
    /// classifier's layers. Two or more tensor ranks keep the layers in pairs.
    pub fn parts(&self, tp: usize) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.blocks,
            Self::Classifier { sizes } if tp > 1 => sizes.len().saturating_sub(1) / 2 + 1,
            Self::Classifier { sizes } => sizes.len().saturating_sub(1),
        }
    }
    /// Returns the kind of each of its blocks, numbered by their first: blocks of one kind are alike. All
    /// layers of a classifier are of one kind.
    pub fn kinds(&self) -> Vec<usize> {
        let mut of_blocks = vec![0; self.parts(1)];
        for (number, kind) in self.shape().map_or_else(Vec::new, Shape::kinds).iter().enumerate() {
            kind.places.iter().for_each(|block| of_blocks[*block] = number);
        }
        of_blocks
    }
    /// Returns a design that has these of its blocks, in order, or itself if it has no blocks.
    #[must_use]
    pub fn of_blocks(&self, blocks: &[usize]) -> Self {
        match self {
            Self::Transformer(shape) => Self::Transformer(shape.of_blocks(blocks)),
            Self::Blocks(shape) => Self::Blocks(shape.of_blocks(blocks)),
            Self::Classifier { .. } => self.clone(),
        }
    }
    /// Name of its parts.
    pub fn of_parts(&self, tp: usize) -> &'static str {
        match self {
            Self::Transformer(_) | Self::Blocks(_) => "blocks",
            Self::Classifier { .. } if tp > 1 => "pairs of layers",
            Self::Classifier { .. } => "layers",
        }
    }
    /// Index of the first block or layer of a part under this number of tensor ranks; at the number of parts,
    /// that of all blocks or layers.
    pub fn start(&self, part: usize, tp: usize) -> usize {
        match self {
            Self::Classifier { sizes } if tp > 1 => {
                (2 * part).saturating_sub(sizes.len() % 2).min(sizes.len().saturating_sub(1))
            }
            _ => part,
        }
    }
    /// Number of features of each row that enters a block or layer.
    pub fn width(&self, layer: usize) -> usize {
        match self {
            Self::Transformer(shape) | Self::Blocks(shape) => shape.width,
            Self::Classifier { sizes } => sizes.get(layer).copied().unwrap_or(0),
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
