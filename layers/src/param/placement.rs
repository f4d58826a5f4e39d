//! Where the parts of a parameter lie, axis by axis. Gradient sync, clipping, gathering, loading and checkpoints
//! all derive from it; none of them names an axis.
use crate::{Error, Result};
use comm::{Axis, Mesh};
use kernels::Kernels;
use std::collections::BTreeMap;
use tensor::{Category, Place, Scalar, Tensor, View, ViewMut};

/// How a parameter lies along one mesh axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The same on every rank, and so is its gradient.
    Same,
    /// The same on every rank; each holds an addend of the gradient.
    Summed,
    /// Cut along a dimension. A fused matrix has several sections, each cut on its own (`[gate|up]`, `[Q|K|V]`).
    Split {
        /// 0: rows, 1: columns.
        dim: usize,
        /// The sections; together they are the whole dimension.
        sections: Vec<Section>,
    },
}

/// A part of a cut dimension, cut on its own into equal pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// How much of the dimension it is.
    pub size: usize,
    /// Into how many pieces it is cut.
    pub pieces: Pieces,
}

/// Into how many pieces a section is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// One for each rank; the ranks must divide it.
    Even,
    /// One for each rank, of `⌈size/ranks⌉`: the last reach beyond the whole, and hold zeros there.
    Padded,
    /// At most so many. Where there are more ranks, consecutive ones hold the same piece, each with an addend of
    /// its gradient.
    Shared(usize),
}

impl From<usize> for Section {
    /// A section that the ranks divide.
    fn from(size: usize) -> Self {
        Self { size, pieces: Pieces::Even }
    }
}

/// A parameter along every axis; where nothing is said, [`Placed::Same`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement(BTreeMap<Axis, Placed>);

impl Default for Placement {
    /// What holds for every parameter: data ranks each have an addend of the gradient.
    fn default() -> Self {
        Self([(Axis::SEQUENCES, Placed::Summed)].into())
    }
}

impl Placement {
    /// This placement, and so along `axis`.
    #[must_use]
    pub fn on(mut self, axis: Axis, placed: Placed) -> Self {
        self.0.insert(axis, placed);
        self
    }
    /// How it lies along one axis.
    pub fn along(&self, axis: Axis) -> &Placed {
        self.0.get(&axis).unwrap_or(&Placed::Same)
    }
    /// The whole size of the dimension that an axis cuts.
    ///
    /// # Panics
    /// If it cuts none.
    pub(crate) fn size_along(&self, axis: Axis) -> usize {
        let Placed::Split { sections, .. } = self.along(axis) else { panic!("{axis} cuts nothing") };
        sections.iter().map(|s| s.size).sum()
    }
    /// Whether several ranks of an axis may hold the same piece of a section that the axis cuts.
    pub(crate) fn may_be_shared(&self, axis: Axis) -> bool {
        let Placed::Split { sections, .. } = self.along(axis) else { return false };
        sections.iter().any(|s| matches!(s.pieces, Pieces::Shared(_)))
    }
    /// Axes along which ranks hold different numbers: bit `1 << axis` of each.
    pub(crate) fn different(&self) -> usize {
        let split = self.0.iter().filter(|(_, p)| matches!(p, Placed::Split { .. }));
        split.fold(0, |axes, (axis, _)| axes | 1 << *axis as usize)
    }
    /// The cuts, outermost axis first, and the shape of this rank's share.
    ///
    /// # Errors
    /// If the ranks of an axis do not divide a section.
    pub(crate) fn cuts<P: Place>(&self, mesh: &Mesh<P>, name: &str, shape: [usize; 2]) -> Result<Cuts> {
        let (mut cuts, mut local) = (Vec::new(), shape);
        for (axis, placed) in &self.0 {
            let Placed::Split { dim, sections } = placed else { continue };
            let group = mesh.group(*axis);
            let (rank, ranks) = (group.rank(), group.size());
            let whole: usize = sections.iter().map(|s| s.size).sum();
            assert_eq!(whole, shape[*dim], "the sections of {name} are not all of it");
            // Where an outer axis cut before, it cut each section alike.
            let part = |size: usize| (size as u128 * local[*dim] as u128 / shape[*dim] as u128) as usize;
            let piece = |s: &Section| {
                let size = part(s.size);
                let fit = |what: String| Error::Fit { what, size, axis: *axis, ranks };
                s.pieces
                    .of(size, ranks)
                    .ok_or_else(|| fit(format!("{} of {name}", ["rows", "columns"][*dim])))
            };
            let pieces: Vec<Piece> = sections.iter().map(piece).collect::<Result<_>>()?;
            local[*dim] = pieces.iter().map(|p| p.share).sum();
            cuts.push(Cut { axis: *axis, dim: *dim, pieces, rank });
        }
        Ok(Cuts { cuts, local })
    }
}

/// How much of a matrix a data rank keeps between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// All of it.
    Whole,
    /// One of as many shards as there are ranks: `⌈n/ranks⌉` consecutive numbers of the parameter's `n`.
    Shard,
}

/// Where value, gradient and optimizer state of a parameter rest on data ranks: DDP, ZeRO 1 to 3 and HSDP are these words.
/// Source: Rajbhandari et al., "ZeRO", §5, arXiv:1910.02054.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rests {
    /// The value.
    pub value: Rest,
    /// The gradient.
    pub gradient: Rest,
    /// Moments and master.
    pub state: Rest,
    /// Shards lie over blocks of so many consecutive ranks; over all of them if nothing is said.
    pub block: Option<usize>,
}

impl Rests {
    /// Every rank has all of everything.
    pub const WHOLE: Self =
        Self { value: Rest::Whole, gradient: Rest::Whole, state: Rest::Whole, block: None };
}

impl Pieces {
    /// A rank's piece of a section of this size; none if the ranks do not fit.
    fn of(self, size: usize, ranks: usize) -> Option<Piece> {
        let holders = match self {
            Pieces::Shared(pieces) if ranks.is_multiple_of(pieces) => ranks / pieces,
            _ => 1,
        };
        let pieces = ranks / holders;
        let fits = self == Pieces::Padded || size.is_multiple_of(pieces);
        fits.then(|| Piece { size, share: size.div_ceil(pieces), holders })
    }
}

/// A section as an axis' ranks hold it.
struct Piece {
    size: usize,
    share: usize,   // of it, on one rank
    holders: usize, // ranks with the same share
}

/// One axis' share of the work of cutting.
struct Cut {
    axis: Axis,
    dim: usize,
    pieces: Vec<Piece>,
    rank: usize,
}

impl Cut {
    /// Where `rank`'s element lies in what was cut; nowhere if it is padding.
    fn before(&self, mut index: [usize; 2], rank: usize) -> Option<[usize; 2]> {
        let (mut local, mut start) = (index[self.dim], 0);
        for piece in &self.pieces {
            if local < piece.share {
                let at = rank / piece.holders * piece.share + local;
                index[self.dim] = start + at;
                return (at < piece.size).then_some(index);
            }
            local -= piece.share;
            start += piece.size;
        }
        unreachable!("an element of the share")
    }
    /// The share's sections: where each begins, its length, and how many ranks hold the same.
    fn sections(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.pieces.iter().scan(0, |start, piece| {
            let from = *start;
            *start += piece.share;
            Some((from, piece.share, piece.holders))
        })
    }
}

/// How this rank's share was cut out of the whole.
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    /// The shape of the share.
    pub(crate) local: [usize; 2],
}

/// Rows (`dim` 0) or columns of a share that several consecutive ranks of an axis hold alike.
pub(crate) struct Replica {
    pub(crate) axis: Axis,
    pub(crate) dim: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// How many ranks hold it.
    pub(crate) holders: usize,
    /// Whether this rank is the first of them.
    pub(crate) first: bool,
}

/// `len` rows or columns of a matrix.
pub(crate) fn part<D: Kernels>(x: View<D>, dim: usize, start: usize, len: usize) -> View<D> {
    if dim == 0 { x.take_rows(start, len) } else { x.take_cols(start, len) }
}

impl Replica {
    /// These rows or columns of a share.
    pub(crate) fn of<'a, D: Kernels>(&self, x: View<'a, D>) -> View<'a, D> {
        part(x, self.dim, self.start, self.len)
    }
    /// These rows or columns of a share, to write.
    pub(crate) fn of_mut<'a, D: Kernels>(&self, x: ViewMut<'a, D>) -> ViewMut<'a, D> {
        if self.dim == 0 { x.take_rows(self.start, self.len) } else { x.take_cols(self.start, self.len) }
    }
}

impl Cuts {
    /// Where this rank's element lies in the whole; nowhere if it is padding.
    pub(crate) fn whole_index(&self, local: [usize; 2]) -> Option<[usize; 2]> {
        self.cuts.iter().rev().try_fold(local, |index, cut| cut.before(index, cut.rank))
    }
    /// What other ranks hold, too, where sections are cut into fewer pieces than there are ranks.
    pub(crate) fn replicas(&self) -> Vec<Replica> {
        let of = |cut: &Cut| {
            let (axis, dim, rank) = (cut.axis, cut.dim, cut.rank);
            let replica = move |(start, len, holders): (usize, usize, usize)| {
                (holders > 1).then(|| Replica {
                    axis,
                    dim,
                    start,
                    len,
                    holders,
                    first: rank.is_multiple_of(holders),
                })
            };
            cut.sections().filter_map(replica).collect::<Vec<_>>()
        };
        self.cuts.iter().flat_map(of).collect()
    }
    /// The whole matrix on the host, put together from all ranks' shares; `None` without values.
    pub(crate) fn gather<D: Kernels>(
        &self,
        mesh: &Mesh<D::Place>,
        share: &Tensor<D>,
    ) -> Result<Option<Vec<D::Elem>>> {
        let (mut part, mut shape) = (share.clone(), self.local);
        for cut in self.cuts.iter().rev() {
            let [rows, cols] = shape;
            shape[cut.dim] = cut.pieces.iter().map(|p| p.size).sum();
            let all = mesh.group(cut.axis).all_gather(&part)?.read();
            let mut to = vec![D::Elem::ZERO; all.as_ref().map_or(0, |_| shape[0] * shape[1])];
            for (i, x) in all.into_iter().flatten().enumerate() {
                let (rank, i) = (i / (rows * cols), i % (rows * cols));
                if let Some([r, c]) = cut.before([i / cols, i % cols], rank) {
                    to[r * shape[1] + c] = x;
                }
            }
            part = Tensor::from_fn(share.device(), Category::Buffers, shape[0], shape[1], |i| to[i]);
        }
        Ok(part.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::{CommError, World};
    use tensor::Cpu;

    /// Two axes cut the same dimension of a fused matrix; every element comes back to its place, and each rank's
    /// share holds both sections. Kills: a cut that ignores sections, the wrong order of axes.
    #[test]
    fn what_two_axes_cut_is_gathered_whole() {
        let sections = vec![8.into(), 4.into()];
        let placement = Placement::default()
            .on(Axis::Dp, Placed::Split { dim: 1, sections: sections.clone() })
            .on(Axis::Tp, Placed::Split { dim: 1, sections });
        World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)])
            .unwrap()
            .run(|device: Cpu<f32>, mesh: Mesh<tensor::Host>| {
                let cuts = placement.cuts(&mesh, "w", [3, 12]).unwrap();
                assert_eq!(cuts.local, [3, 3]);
                let share = Tensor::from_fn(&device, Category::Buffers, 3, 3, |i| {
                    let [r, c] = cuts.whole_index([i / 3, i % 3]).unwrap();
                    (r * 12 + c) as f32
                });
                let first: Vec<f32> = share.read().unwrap()[..3].to_vec();
                let at = 4 * mesh.group(Axis::Dp).rank() + 2 * mesh.group(Axis::Tp).rank();
                assert_eq!(first, [at as f32, at as f32 + 1.0, 8.0 + at as f32 / 2.0]);
                let whole = cuts.gather(&mesh, &share).unwrap().unwrap();
                assert_eq!(whole, (0..36).map(|i| i as f32).collect::<Vec<_>>());
                Ok::<_, CommError>(())
            })
            .unwrap();
    }

    #[test]
    fn ranks_that_do_not_divide_are_refused_with_those_that_would() {
        let placement = Placement::default().on(Axis::Tp, Placed::Split { dim: 0, sections: vec![6.into()] });
        let why = World::threads(&[(Axis::Tp, 4)])
            .unwrap()
            .run(|_: Cpu<f32>, mesh| placement.cuts(&mesh, "w", [6, 1]).map(drop))
            .unwrap_err();
        assert_eq!(why.reason, "tp=4 does not divide the 6 rows of w; tp can be 1, 2, 3, 6");
    }

    /// Sizes whose squares 64 bits do not hold, on any rank of a world without peers. Kills: a share that wraps.
    #[test]
    fn shares_of_large_sections_are_exact() {
        let large = (1 << 32) + 12;
        let sections = vec![large.into(), (3 * large).into()];
        let placement = Placement::default()
            .on(Axis::Dp, Placed::Split { dim: 1, sections: sections.clone() })
            .on(Axis::Tp, Placed::Split { dim: 1, sections });
        let mesh = Mesh::ghost(&[(Axis::Dp, 2), (Axis::Tp, 2)], 3).unwrap();
        let cuts = placement.cuts(&mesh, "w", [8, 4 * large]).unwrap();
        assert_eq!(cuts.local, [8, large]);
        assert_eq!(cuts.whole_index([0, 0]), Some([0, large / 4 * 3]));
        assert_eq!(cuts.whole_index([7, large - 1]), Some([7, 4 * large - 1]));
    }

    /// Kills: padding that lies in the whole, a replica of the wrong piece, every rank the first of its block.
    #[test]
    fn padded_and_shared_sections_are_gathered_whole() {
        let sections = vec![
            Section { size: 8, pieces: Pieces::Even },
            Section { size: 6, pieces: Pieces::Shared(2) },
            Section { size: 5, pieces: Pieces::Padded },
        ];
        let placement = Placement::default().on(Axis::Tp, Placed::Split { dim: 1, sections });
        World::threads(&[(Axis::Tp, 4)])
            .unwrap()
            .run(|device: Cpu<f32>, mesh: Mesh<tensor::Host>| {
                let (cuts, rank) = (placement.cuts(&mesh, "w", [2, 19]).unwrap(), mesh.rank());
                assert_eq!(cuts.local, [2, 2 + 3 + 2]);
                let at = |i: usize| cuts.whole_index([i / 7, i % 7]);
                assert_eq!((at(7), at(2)), (Some([1, 2 * rank]), Some([0, 8 + rank / 2 * 3])));
                assert_eq!(at(6), (rank < 2).then_some([0, 14 + 2 * rank + 1]));
                let number = |[r, c]: [usize; 2]| (r * 19 + c) as f32;
                let share = Tensor::from_fn(&device, Category::Buffers, 2, 7, |i| at(i).map_or(-1.0, number));
                let whole = cuts.gather(&mesh, &share).unwrap().unwrap();
                assert_eq!(whole, (0..38).map(|i| i as f32).collect::<Vec<_>>());
                let [replica] = &cuts.replicas()[..] else { panic!("one replicated section") };
                assert_eq!((replica.dim, replica.start, replica.len, replica.holders), (1, 2, 3, 2));
                assert_eq!(replica.first, rank % 2 == 0);
                Ok::<_, CommError>(())
            })
            .unwrap();
        assert!(Pieces::Shared(3).of(6, 4).is_none() && Pieces::Shared(3).of(6, 2).is_some());
    }
}
