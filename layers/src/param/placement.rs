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
use crate::param::shards::ShardingStrategy;
use crate::{Error, ParamValues, Result};
use comm::{Axes, Axis, Group, Mesh};
use kernels::Kernels;
use std::iter::from_fn;
use std::ops::Range;
use tensor::{Category, Place, Scalar, Tensor, View, ViewMut};

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
        if !size.is_multiple_of(grain) {
            let wanted = format!("a multiple of the grain, {grain}");
            return Err(Error::size(format!("the number of {what}"), size, wanted));
        }
        let units = size / grain;
        let holders = match pieces {
            Pieces::Shared(pieces) if ranks.is_multiple_of(pieces) => ranks / pieces,
            _ => 1,
        };
        if pieces != Pieces::Padded && !units.is_multiple_of(ranks / holders) {
            let what = if grain == 1 { what.to_string() } else { format!("grains of {grain} {what}") };
            return Err(Error::fit(&what, units, (axis, ranks)));
        }
        Ok(Piece { size, share: units.div_ceil(ranks / holders) * grain, holders, from: 0, at: 0 })
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
}

impl Default for Placement {
    /// The placement common to all parameters: ranks with different tokens each have a partial sum of the
    /// gradient.
    fn default() -> Self {
        Self { cuts: Vec::new(), summed: Axes::TOKENS, rests: ShardingStrategy::WHOLE, trained: true }
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

/// A section as held by the ranks of an axis.
struct Piece {
    size: usize,
    share: usize,   // size on one rank
    holders: usize, // number of ranks with the same piece
    from: usize,    // start of the section before the cut
    at: usize,      // start of the piece in the local part
}

/// The cut along one axis.
struct Cut {
    axis: Axis,
    dim: usize,
    pieces: Vec<Piece>,
    rank: usize,
}

impl Cut {
    /// Returns the index before the cut of `rank`'s element at `index`, `None` for padding. Also returns the
    /// length of its run: the element and those after it in its row that are adjacent before the cut too, or
    /// are padding too.
    fn before(&self, mut index: [usize; 2], rank: usize) -> (Option<[usize; 2]>, usize) {
        let local = index[self.dim];
        let piece = self.pieces.iter().rfind(|piece| piece.at <= local).expect("outside of the local part");
        let (at, left) =
            (rank / piece.holders * piece.share + local - piece.at, piece.at + piece.share - local);
        let beside = if at < piece.size { left.min(piece.size - at) } else { left };
        index[self.dim] = piece.from + at;
        ((at < piece.size).then_some(index), if self.dim == 0 { usize::MAX } else { beside })
    }
}

/// The cuts that make this rank's local part of the whole.
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    /// Shape of the local part.
    pub(crate) local: [usize; 2],
}

/// Some rows (`dim` 0) or columns of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Band {
    pub(crate) dim: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// A part of the local part that several consecutive ranks of an axis hold.
pub(crate) struct Replica {
    pub(crate) axis: Axis,
    pub(crate) part: Band,
    /// Number of ranks that hold it.
    pub(crate) holders: usize,
    /// True if this rank is the first of them.
    pub(crate) first: bool,
}

impl Band {
    /// Returns the part of it in these columns, counted from the first of them; `None` if there is none.
    pub(crate) fn within(self, columns: Band) -> Option<Self> {
        if self.dim == 0 {
            return Some(self);
        }
        let start = self.start.max(columns.start);
        let end = (self.start + self.len).min(columns.start + columns.len);
        (start < end).then(|| Band { dim: 1, start: start - columns.start, len: end - start })
    }
    /// Returns these rows or columns of `x`.
    pub(crate) fn of<D: Kernels>(self, x: View<D>) -> View<D> {
        if self.dim == 0 { x.take_rows(self.start, self.len) } else { x.take_cols(self.start, self.len) }
    }
    /// Returns these rows or columns of `x`, for writing.
    pub(crate) fn of_mut<D: Kernels>(self, x: ViewMut<D>) -> ViewMut<D> {
        if self.dim == 0 { x.take_rows(self.start, self.len) } else { x.take_cols(self.start, self.len) }
    }
}

impl Cuts {
    /// Cuts a dimension of the current local part over the ranks of an axis. `whole` is its size before any
    /// cut.
    fn cut<P: Place>(
        &mut self,
        (axis, group): (Axis, &Group<P>),
        name: &str,
        (dim, whole): (usize, usize),
        sections: &[Section],
    ) -> Result<()> {
        let all: usize = sections.iter().map(|s| s.size).sum();
        assert_eq!(all, whole, "the sections of {name} must add up to its size");
        let what = format!("{} of {name}", ["rows", "columns"][dim]);
        // An outer axis has cut each section in the same ratio.
        let left = |size: usize| (size as u128 * self.local[dim] as u128 / whole as u128) as usize;
        let piece = |s: &Section| s.piece(left(s.size), &what, (axis, group.size()));
        let mut pieces: Vec<Piece> = sections.iter().map(piece).collect::<Result<_>>()?;
        let [mut from, mut at] = [0, 0];
        for piece in &mut pieces {
            (piece.from, piece.at) = (from, at);
            (from, at) = (from + piece.size, at + piece.share);
        }
        self.local[dim] = at;
        self.cuts.push(Cut { axis, dim, pieces, rank: group.rank() });
        Ok(())
    }
    /// Returns the cut of a matrix of whole rows into this rank's columns, section by section.
    ///
    /// # Errors
    /// If the ranks do not divide the grains of a section.
    pub(crate) fn columns<P: Place>(
        (axis, group): (Axis, &Group<P>),
        name: &str,
        sections: &[Section],
    ) -> Result<Self> {
        let width = sections.iter().map(|s| s.size).sum();
        let mut cuts = Self { cuts: Vec::new(), local: [1, width] };
        cuts.cut((axis, group), name, (1, width), sections)?;
        Ok(cuts)
    }
    /// Returns the stretches of the local part that are contiguous before the cut, each with its start there,
    /// for each cut. Padding is left out.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (Band, usize)> {
        let of = |cut: &Cut, piece: &Piece| {
            let at = (cut.rank / piece.holders * piece.share).min(piece.size);
            let len = piece.share.min(piece.size - at);
            (Band { dim: cut.dim, start: piece.at, len }, piece.from + at)
        };
        self.cuts.iter().flat_map(move |cut| cut.pieces.iter().map(move |piece| of(cut, piece)))
    }
    /// Returns the index in the whole of this rank's element; `None` for padding.
    pub(crate) fn whole_index(&self, local: [usize; 2]) -> Option<[usize; 2]> {
        self.run(local).0
    }
    /// Returns the index in the whole, and the length of the run: adjacent elements of the row in the whole
    /// too, or padding.
    fn run(&self, local: [usize; 2]) -> (Option<[usize; 2]>, usize) {
        let all = (Some(local), self.local[1] - local[1]);
        self.cuts.iter().rev().fold(all, |(index, len), cut| {
            let Some(index) = index else { return (None, len) };
            let (index, beside) = cut.before(index, cut.rank);
            (index, len.min(beside))
        })
    }
    /// Splits elements of this rank's local part, counted row by row, into runs that are adjacent in a row of
    /// the whole. Returns each run's first index in the whole (`None` for padding) and its length.
    pub(crate) fn runs(
        &self,
        mut numbers: Range<usize>,
    ) -> impl Iterator<Item = (Option<[usize; 2]>, usize)> {
        let [rows, cols] = self.local;
        from_fn(move || {
            let at = numbers.start;
            let beyond = at >= rows * cols;
            let (index, len) = if beyond { (None, usize::MAX) } else { self.run([at / cols, at % cols]) };
            let len = len.min(numbers.len());
            numbers.start += len;
            (len > 0).then_some((index, len))
        })
    }
    /// Sets elements of this rank's local part, counted row by row, from `first` on; padding is set to zero.
    pub(crate) fn fill<E: Scalar>(&self, first: usize, mut to: &mut [E], numbers: &ParamValues<E>) {
        for (index, len) in self.runs(first..first + to.len()) {
            let (some, rest) = to.split_at_mut(len);
            match index {
                Some(index) => numbers.set(index, some),
                None => some.fill(E::ZERO),
            }
            to = rest;
        }
    }
    /// Returns the parts that other ranks hold too, where sections are cut into fewer pieces than there are
    /// ranks.
    pub(crate) fn replicas(&self) -> Vec<Replica> {
        let of = |cut: &Cut, piece: &Piece| {
            let part = Band { dim: cut.dim, start: piece.at, len: piece.share };
            let (axis, holders, first) = (cut.axis, piece.holders, cut.rank.is_multiple_of(piece.holders));
            (holders > 1).then_some(Replica { axis, part, holders, first })
        };
        self.cuts.iter().flat_map(|cut| cut.pieces.iter().filter_map(move |piece| of(cut, piece))).collect()
    }
    /// Returns the whole matrix on the host, assembled from all ranks' local parts; `None` on the meta
    /// device.
    pub(crate) fn gather<D: Kernels>(
        &self,
        mesh: &Mesh<D::Place>,
        share: &Tensor<D>,
    ) -> Result<Option<Vec<D::Elem>>> {
        let (mut part, mut shape) = (share.clone(), self.local);
        for cut in self.cuts.iter().rev() {
            let [rows, cols] = shape;
            shape[cut.dim] = cut.pieces.iter().map(|p| p.size).sum();
            let all = mesh.group(cut.axis).all_gather(&part)?.read().unwrap_or_default();
            let mut to = vec![D::Elem::ZERO; if all.is_empty() { 0 } else { shape[0] * shape[1] }];
            let mut at = 0;
            while at < all.len() {
                let (rank, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
                let (index, beside) = cut.before([row, col], rank);
                let len = beside.min(cols - col);
                index.inspect(|[r, c]| to[r * shape[1] + c..][..len].copy_from_slice(&all[at..][..len]));
                at += len;
            }
            drop(all);
            part = Tensor::empty(share.device(), Category::Buffers, shape[0], shape[1]);
            part.write_slices(&mut |first, some| some.copy_from_slice(&to[first..][..some.len()]));
        }
        Ok(part.read())
    }
}

#[cfg(test)]
mod tests;
