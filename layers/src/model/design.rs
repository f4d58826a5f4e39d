//! What a model is built as, whichever kind: how it is cut into parts, what goes in, and what comes out.
use crate::model::classifier::{parts, shared, start};
use crate::{Builder, Chunk, Result, Shape, Stage};
use comm::Group;
use kernels::Kernels;
use std::fmt;
use std::ops::Range;

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
    /// These parts of the model, on this rank. `ends` are the ranks that have its first and last part, where this is one of them
    /// and they are two.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide what they should share.
    pub fn stage<D: Kernels>(
        &self,
        at: &Builder<D>,
        parts: Range<usize>,
        ends: Option<&Group<D::Place>>,
    ) -> Result<Box<dyn Stage<D>>> {
        Ok(match self {
            Self::Transformer(shape) => Box::new(Chunk::part(at, shape, parts, ends)?),
            Self::Classifier { sizes } => Box::new(Chunk::classifier(at, sizes, parts)?),
            Self::Blocks(shape) => Box::new(Chunk::bare(at, shape, parts)?),
        })
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
