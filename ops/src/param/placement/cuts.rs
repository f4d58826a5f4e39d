//! Cuts of a matrix over the ranks of a mesh: this rank's rows and columns, and where they are in the whole.
use super::Section;
use crate::param::shards::rectangles;
use crate::{Error, ParamValues, Result};
use comm::{Axis, Group, Mesh};
use kernels::Kernels;
use tensor::{Category, Device, Place, Scalar, Strided, Tensor, View, ViewMut};

/// A section as held by the ranks of an axis.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) size: usize,
    pub(super) share: usize,   // size on one rank
    pub(super) holders: usize, // number of ranks with the same piece
    pub(super) from: usize,    // start of the section before the cut
    pub(super) at: usize,      // start of the piece in the local part
}

/// The cut along one axis.
#[derive(Clone)]
pub(super) struct Cut {
    axis: Axis,
    dim: usize,
    pieces: Vec<Piece>,
    rank: usize,
}

impl Cut {
    /// Returns the piece of this local row or column.
    fn piece(&self, local: usize) -> &Piece {
        self.pieces.iter().rfind(|piece| piece.at <= local).expect("outside of the local part")
    }
    /// Returns the row or column before the cut of `rank`'s `local` one, `None` for padding, and the number
    /// of them from there on that are adjacent before the cut too, or are padding too.
    fn along(&self, local: usize, rank: usize) -> (Option<usize>, usize) {
        let piece = self.piece(local);
        let at = rank / piece.holders * piece.share + local - piece.at;
        let left = piece.at + piece.share - local;
        let beside = if at < piece.size { left.min(piece.size - at) } else { left };
        ((at < piece.size).then_some(piece.from + at), beside)
    }
    /// Returns the index before the cut of `rank`'s element at `index`, `None` for padding. Also returns the
    /// length of its run: the element and those after it in its row that are adjacent before the cut too, or
    /// are padding too.
    fn before(&self, mut index: [usize; 2], rank: usize) -> (Option<[usize; 2]>, usize) {
        let (at, beside) = self.along(index[self.dim], rank);
        let before = at.map(|at| {
            index[self.dim] = at;
            index
        });
        (before, if self.dim == 0 { usize::MAX } else { beside })
    }
}

/// The cuts that make this rank's local part of the whole.
pub(crate) struct Cuts {
    pub(super) cuts: Vec<Cut>,
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

/// Local rows or columns that are contiguous in the whole.
struct CutSpan {
    at: usize,
    len: usize,
    whole: Option<usize>, // their start in the whole; none for padding
    first: bool,          // no lower rank holds them
}

/// Elements of a list that are a rectangle of the local part, and one of the whole, too.
#[derive(Clone, Copy)]
pub(crate) struct CutRectangle {
    /// Index of its first element in the list; those of the next row follow a row of the local part later.
    pub(crate) from: usize,
    column: usize, // of its first element in the local part
    stride: usize, // columns of the local part
    pub(crate) shape: [usize; 2],
    /// First row and column in the whole; none for padding.
    pub(crate) whole: Option<[usize; 2]>,
    /// True if this rank is the first holder of the pieces.
    pub(crate) first: bool,
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

impl CutRectangle {
    /// Returns its elements of the list.
    pub(crate) fn of<D: Device, B>(&self, list: Strided<D, B>) -> Strided<D, B> {
        let [rows, cols] = self.shape;
        let room = list.rows() * list.cols();
        let list = list.reshape(1, room);
        if rows == 1 {
            return list.take_cols(self.from, cols);
        }
        let whole_rows = list.take_cols(self.from - self.column, rows * self.stride);
        whole_rows.reshape(rows, self.stride).take_cols(self.column, cols)
    }
    /// Returns its elements of a matrix in which it begins at this row and column.
    pub(crate) fn at<D: Device, B>(&self, [row, column]: [usize; 2], matrix: Strided<D, B>) -> Strided<D, B> {
        matrix.take_rows(row, self.shape[0]).take_cols(column, self.shape[1])
    }
    /// Number of its elements.
    pub(crate) fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }
    /// Returns the part of it in a rectangle of the whole, and the row and column of that part there; `None`
    /// if there is none, or it is padding.
    pub(crate) fn within(&self, begin: [usize; 2], shape: [usize; 2]) -> Option<(Self, [usize; 2])> {
        let whole = self.whole?;
        let first = [0, 1].map(|dim| whole[dim].max(begin[dim]));
        let end = [0, 1].map(|dim| (whole[dim] + self.shape[dim]).min(begin[dim] + shape[dim]));
        if first[0] >= end[0] || first[1] >= end[1] {
            return None;
        }
        let [row, column] = [0, 1].map(|dim| first[dim] - whole[dim]);
        let part = Self {
            from: self.from + row * self.stride + column,
            column: self.column + column,
            shape: [0, 1].map(|dim| end[dim] - first[dim]),
            whole: Some(first),
            ..*self
        };
        Some((part, [0, 1].map(|dim| first[dim] - begin[dim])))
    }
}

impl Cuts {
    /// Returns the same cuts as another rank has them, which has these coordinates.
    pub(crate) fn of_rank(&self, coordinate: impl Fn(Axis) -> usize) -> Self {
        let ranked = |cut: &Cut| Cut { rank: coordinate(cut.axis), ..cut.clone() };
        Self { cuts: self.cuts.iter().map(ranked).collect(), local: self.local }
    }
    /// The axes that cut.
    pub(crate) fn axes(&self) -> impl Iterator<Item = Axis> {
        self.cuts.iter().map(|cut| cut.axis)
    }
    /// Cuts a dimension of the current local part over the ranks of an axis. `whole` is its size before any
    /// cut.
    pub(super) fn cut<P: Place>(
        &mut self,
        (axis, group): (Axis, &Group<P>),
        name: &str,
        (dim, whole): (usize, usize),
        sections: &[Section],
    ) -> Result<()> {
        let total: usize = sections.iter().map(|s| s.size).sum();
        assert_eq!(total, whole, "the sections of {name} must add up to its size");
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
    /// Returns the cuts of a tensor with one element for each block of `n` elements of a row.
    ///
    /// # Errors
    /// If a cut separates the elements of a block.
    pub(crate) fn blocks(&self, n: usize, name: &str) -> Result<Self> {
        let mut cuts = Vec::new();
        for cut in &self.cuts {
            let is_whole = |piece: &Piece| piece.share == piece.size && piece.holders == 1;
            if cut.dim == 1 && cut.pieces.iter().all(is_whole) {
                continue; // by one rank: all columns, in their order
            }
            let piece = |piece: &Piece| {
                let Piece { size, share, holders, from, at } = *piece;
                if cut.dim == 0 {
                    return Ok(*piece);
                }
                if let Some(seen) = [share, from, at].into_iter().find(|seen| !seen.is_multiple_of(n)) {
                    return Err(Error::size(
                        format!("the column of {name} at which {} cuts", cut.axis),
                        seen,
                        format!("a multiple of {n}, the elements of a block"),
                    ));
                }
                Ok(Piece { size: size.div_ceil(n), share: share / n, holders, from: from / n, at: at / n })
            };
            let pieces = cut.pieces.iter().map(piece).collect::<Result<_>>()?;
            cuts.push(Cut { pieces, ..*cut });
        }
        Ok(Self { cuts, local: [self.local[0], self.local[1].div_ceil(n)] })
    }
    /// Returns the cuts of a tensor of one element that all ranks hold.
    pub(crate) fn one(&self) -> Self {
        let of = |cut: &Cut| {
            let pieces = vec![Piece { size: 1, share: 1, holders: usize::MAX, from: 0, at: 0 }];
            Cut { dim: 1, pieces, ..*cut }
        };
        Self { cuts: self.cuts.iter().map(of).collect(), local: [1, 1] }
    }
    /// Returns the stretches of the local part that are contiguous before the cut, each with its start there,
    /// for each cut. Padding is left out.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (Band, usize)> {
        let stretch = |cut: &Cut, piece: &Piece| {
            let at = (cut.rank / piece.holders * piece.share).min(piece.size);
            (Band { dim: cut.dim, start: piece.at, len: piece.share.min(piece.size - at) }, piece.from + at)
        };
        self.cuts.iter().flat_map(move |cut| cut.pieces.iter().map(move |piece| stretch(cut, piece)))
    }
    /// Returns the index in the whole of this rank's element; `None` for padding.
    pub(crate) fn whole_index(&self, local: [usize; 2]) -> Option<[usize; 2]> {
        self.cuts.iter().rev().try_fold(local, |index, cut| cut.before(index, cut.rank).0)
    }
    /// Sets elements of this rank's local part, counted row by row, from `first` on; padding is set to zero.
    pub(crate) fn fill<E: Scalar>(&self, first: usize, to: &mut [E], numbers: &ParamValues<E>) {
        let [rows, cols] = self.local;
        let inside = to.len().min((rows * cols).saturating_sub(first));
        for CutRectangle { from, shape: [height, width], whole, .. } in self.rectangles(first, inside) {
            let some = &mut to[from..from + (height - 1) * cols + width];
            match whole {
                Some(begin) => numbers.set_rows(begin, [width, cols], some),
                None => some.chunks_mut(cols).for_each(|row| row[..width].fill(E::ZERO)),
            }
        }
        to[inside..].fill(E::ZERO);
    }
    /// Splits `n` elements of this rank's local part, counted row by row, from `first` on, into rectangles
    /// that are rectangles of the whole, too, or are padding.
    pub(crate) fn rectangles(&self, first: usize, n: usize) -> Vec<CutRectangle> {
        let mut found = Vec::new();
        let n = n.min((self.local[0] * self.local[1]).saturating_sub(first));
        let [rows, columns] = [0, 1].map(|dim| self.spans(dim));
        for part in rectangles(n, first, self.local) {
            let within = |dim: usize, span: &CutSpan| {
                let start = span.at.max(part.begin[dim]);
                let end = (span.at + span.len).min(part.begin[dim] + part.shape[dim]);
                let whole = span.whole.map(|whole| whole + start - span.at);
                (start < end).then(|| CutSpan { at: start, len: end - start, whole, ..*span })
            };
            let columns: Vec<_> = columns.iter().filter_map(|span| within(1, span)).collect();
            for row in rows.iter().filter_map(|span| within(0, span)) {
                found.extend(columns.iter().map(|column| CutRectangle {
                    from: row.at * self.local[1] + column.at - first,
                    column: column.at,
                    stride: self.local[1],
                    shape: [row.len, column.len],
                    whole: row.whole.zip(column.whole).map(<[usize; 2]>::from),
                    first: row.first && column.first,
                }));
            }
        }
        found
    }
    /// Splits local rows (`dim` 0) or columns into spans that are contiguous in the whole.
    fn spans(&self, dim: usize) -> Vec<CutSpan> {
        let (mut spans, mut at) = (Vec::new(), 0);
        while at < self.local[dim] {
            let mut span = CutSpan { at, len: self.local[dim] - at, whole: Some(at), first: true };
            for cut in self.cuts.iter().rev().filter(|cut| cut.dim == dim) {
                let Some(local) = span.whole else { break };
                let (before, beside) = cut.along(local, cut.rank);
                span.first &= cut.rank.is_multiple_of(cut.piece(local).holders);
                (span.whole, span.len) = (before, span.len.min(beside));
            }
            at += span.len;
            spans.push(span);
        }
        spans
    }
    /// Returns the parts that other ranks hold too, where sections are cut into fewer pieces than there are
    /// ranks.
    pub(crate) fn replicas(&self) -> Vec<Replica> {
        let of = |cut: &Cut, &Piece { share, holders, at, .. }: &Piece| {
            let part = Band { dim: cut.dim, start: at, len: share };
            let first = cut.rank.is_multiple_of(holders);
            (holders > 1).then_some(Replica { axis: cut.axis, part, holders, first })
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
        let mut part = share.clone();
        let mut shape = self.local;
        for cut in self.cuts.iter().rev() {
            let [rows, cols] = shape;
            shape[cut.dim] = cut.pieces.iter().map(|p| p.size).sum();
            let all = mesh.group(cut.axis).all_gather(&part)?.read().unwrap_or_default();
            let mut whole = vec![D::Elem::ZERO; if all.is_empty() { 0 } else { shape[0] * shape[1] }];
            let mut at = 0;
            while at < all.len() {
                let (rank, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
                let (index, beside) = cut.before([row, col], rank);
                let len = beside.min(cols - col);
                index.inspect(|[r, c]| whole[r * shape[1] + c..][..len].copy_from_slice(&all[at..][..len]));
                at += len;
            }
            drop(all);
            part = Tensor::empty(share.device(), Category::Buffers, shape[0], shape[1]);
            part.write_slices(&mut |first, some| some.copy_from_slice(&whole[first..][..some.len()]));
        }
        Ok(part.read())
    }
}
