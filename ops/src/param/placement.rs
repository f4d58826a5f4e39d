//! Placement of a parameter over the axes of a mesh, and its sharding at rest. Gradient sync, clipping,
//! gathering, loading and checkpoints are all derived from it; none of them names an axis.
//!
//! ```text
//! [Q|K|V] of 4 query heads and 2 KV heads, columns cut over 4 ranks: three sections, each cut on its own
//!
//! whole     | q0 q1 q2 q3 | k0 k1 | v0 v1 |      a piece is cut from its section: `from` in the whole
//! rank 2    | q2 | k1 | v1 |                     and put after the pieces before it: `at` in the local part
//! rank 3    | q3 | k1 | v1 |                     k1 and v1 have two `holders`, each with a partial sum of dW
//! ```
mod cuts;
pub mod matrices;
pub mod sent;

use crate::param::shards::ShardingStrategy;
use crate::{Error, ParamValues, Result};
use comm::{Axes, Axis, Mesh};
use cuts::Piece;
pub(crate) use cuts::{Band, CutRectangle, Cuts, Replica};
use matrices::MatrixSections;
use sent::SentFeatures;
use std::sync::Arc;
use tensor::{Place, Scalar};

/// Placement of a parameter along one mesh axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The same on every rank, and so is its gradient.
    Replicate,
    /// The same on every rank; each holds a partial sum of the gradient.
    Partial,
    /// Cut along a dimension. A fused matrix has several sections, each cut on its own (`[gate|up]`,
    /// `[Q|K|V]`).
    Shard {
        /// 0: rows, 1: columns.
        dim: usize,
        /// The sections; together they are the whole dimension.
        sections: Vec<Section>,
    },
}

/// A part of a cut dimension, cut on its own into equal pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Size along the dimension.
    pub size: usize,
    /// Number of pieces that it is cut into.
    pub pieces: Pieces,
    /// Grain: rows or columns that no cut separates, such as a head, an expert, a quantization block; usually
    /// 1.
    pub grain: usize,
}

/// Number of pieces that a section is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// One for each rank; the number of ranks must divide the number of grains.
    Even,
    /// One for each rank, of `⌈grains/ranks⌉` grains: the last ones extend beyond the whole and hold zeros
    /// there.
    Padded,
    /// At most this number. If there are more ranks, consecutive ranks hold the same piece, each with a
    /// partial sum of its gradient.
    Shared(usize),
}

impl Section {
    /// Creates a section with a grain of one row or column.
    #[must_use]
    pub fn new(size: usize, pieces: Pieces) -> Self {
        Self { size, pieces, grain: 1 }
    }
    /// Returns the piece on each rank when `ranks` cut the `size` rows or columns that outer axes left of the
    /// section.
    fn piece(self, size: usize, what: &str, (axis, ranks): (Axis, usize)) -> Result<Piece> {
        let Self { pieces, grain, .. } = self;
        if pieces != Pieces::Padded && !size.is_multiple_of(grain) {
            let wanted = format!("a multiple of the grain, {grain}");
            return Err(Error::size(format!("the number of {what}"), size, wanted));
        }
        let units = size.div_ceil(grain);
        let holders = match pieces {
            Pieces::Shared(pieces) if ranks.is_multiple_of(pieces) => ranks / pieces,
            _ => 1,
        };
        if pieces != Pieces::Padded && !units.is_multiple_of(ranks / holders) {
            let what = if grain == 1 { what.to_string() } else { format!("grains of {grain} {what}") };
            return Err(Error::fit(&what, units, (axis, ranks)));
        }
        let share = if ranks == holders { size } else { units.div_ceil(ranks / holders) * grain };
        Ok(Piece { size, share, holders, from: 0, at: 0 })
    }
}

impl From<usize> for Section {
    /// A section that the ranks divide.
    fn from(size: usize) -> Self {
        Self::new(size, Pieces::Even)
    }
}

/// Placement of a parameter along every axis, and its sharding at rest. Along an axis without entry it is
/// [`Placed::Replicate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub(crate) cuts: Vec<(Axis, Placed)>, // `Shard`s, the outermost first
    pub(crate) summed: Axes,
    /// Sharding at rest over the ranks that sum its gradient.
    pub rests: ShardingStrategy,
    /// True if it has a gradient. A parameter without one, such as a router's bias, is placed, gathered,
    /// saved and loaded as others.
    pub trained: bool,
    /// The weights that are always 0, if some are: those of features that ranks do not send.
    pub sent: Option<Arc<SentFeatures>>,
    /// Its sections that are matrices of their own.
    pub matrices: MatrixSections,
}

impl Default for Placement {
    /// The placement common to all parameters: ranks with different tokens each have a partial sum of the
    /// gradient.
    fn default() -> Self {
        Self {
            cuts: Vec::new(),
            summed: Axes::TOKENS,
            rests: ShardingStrategy::WHOLE,
            trained: true,
            sent: None,
            matrices: MatrixSections::default(),
        }
    }
}

impl Placement {
    /// Sets the sharding at rest.
    #[must_use]
    pub fn resting(self, rests: ShardingStrategy) -> Self {
        Self { rests, ..self }
    }
    /// Marks the parameter as untrained: it has no gradient.
    #[must_use]
    pub fn untrained(self) -> Self {
        Self { trained: false, ..self }
    }
    /// Sets the placement along `axis`. If several axes cut, the one set first cuts first.
    #[must_use]
    pub fn on(mut self, axis: Axis, placed: Placed) -> Self {
        self.cuts.retain(|(cut, _)| *cut != axis);
        self.summed = self.summed.without(axis);
        match placed {
            Placed::Replicate => {}
            Placed::Partial => self.summed = self.summed | axis,
            Placed::Shard { .. } => self.cuts.push((axis, placed)),
        }
        self
    }
    /// Returns values with zeros in place of the weights that are always 0.
    pub(crate) fn masked<'a, E: Scalar>(&self, values: ParamValues<'a, E>) -> ParamValues<'a, E> {
        let Some(sent) = self.sent.clone() else { return values };
        values.map(move |index, x| if sent.reaches(index) { x } else { E::ZERO })
    }
    /// The axes along which ranks have partial sums of the gradient.
    pub fn summed(&self) -> Axes {
        self.summed
    }
    /// The axes along which ranks have different elements.
    pub fn different(&self) -> Axes {
        self.cuts.iter().map(|(axis, _)| *axis).collect()
    }
    /// The sections that an axis cuts; empty if it cuts nothing.
    fn sections(&self, axis: Axis) -> &[Section] {
        let cut = self.cuts.iter().find(|(cut, _)| *cut == axis);
        let Some((_, Placed::Shard { sections, .. })) = cut else { return &[] };
        sections
    }
    /// The whole size of the dimension that an axis cuts.
    pub(crate) fn size_along(&self, axis: Axis) -> usize {
        self.sections(axis).iter().map(|s| s.size).sum()
    }
    /// Returns whether several ranks of an axis may hold the same piece of a section that the axis cuts.
    pub(crate) fn may_be_shared(&self, axis: Axis) -> bool {
        self.sections(axis).iter().any(|s| matches!(s.pieces, Pieces::Shared(_)))
    }
    /// Returns the cuts, outermost first, and the shape of this rank's local part.
    ///
    /// # Errors
    /// If the ranks of an axis do not divide the grains of a section.
    pub(crate) fn cuts<P: Place>(&self, mesh: &Mesh<P>, name: &str, shape: [usize; 2]) -> Result<Cuts> {
        let mut cuts = Cuts { cuts: Vec::new(), local: shape };
        for (axis, placed) in &self.cuts {
            let Placed::Shard { dim, sections } = placed else { continue };
            cuts.cut((*axis, mesh.group(*axis)), name, (*dim, shape[*dim]), sections)?;
        }
        Ok(cuts)
    }
}

#[cfg(test)]
mod tests;
