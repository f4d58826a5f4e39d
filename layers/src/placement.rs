//! Where the parts of a parameter lie, axis by axis. Gradient sync, clipping, gathering, loading and checkpoints
//! all derive from it; none of them names an axis.
use crate::{Error, Result};
use comm::{Axis, Mesh};
use kernels::Kernels;
use std::collections::{BTreeMap, BTreeSet};
use tensor::{Category, Scalar, Tensor};

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
        /// Sizes of the sections; their sum is the whole dimension.
        sections: Vec<usize>,
    },
}

/// A parameter along every axis; where nothing is said, [`Placed::Same`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement(BTreeMap<Axis, Placed>);

impl Default for Placement {
    /// What holds for every parameter: data ranks each have an addend of the gradient.
    fn default() -> Self {
        Self([(Axis::Dp, Placed::Summed)].into())
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
    /// Axes along which ranks hold different numbers.
    pub fn different(&self) -> BTreeSet<Axis> {
        self.0.iter().filter(|(_, p)| matches!(p, Placed::Split { .. })).map(|(axis, _)| *axis).collect()
    }
    /// The cuts, outermost axis first, and the shape of this rank's share.
    ///
    /// # Errors
    /// If the ranks of an axis do not divide a section.
    pub(crate) fn cuts<D: Kernels>(&self, mesh: &Mesh<D>, name: &str, shape: [usize; 2]) -> Result<Cuts> {
        let (mut cuts, mut local) = (Vec::new(), shape);
        for (axis, placed) in &self.0 {
            let Placed::Split { dim, sections } = placed else { continue };
            let (rank, ranks) = (mesh.group(*axis).rank(), mesh.group(*axis).size());
            assert_eq!(
                sections.iter().sum::<usize>(),
                shape[*dim],
                "the sections of {name} are not all of it"
            );
            // Where an outer axis cut before, it cut each section alike.
            let sections: Vec<_> = sections.iter().map(|s| s * local[*dim] / shape[*dim]).collect();
            if let Some(size) = sections.iter().find(|s| !s.is_multiple_of(ranks)) {
                let what = format!("{} of {name}", ["rows", "columns"][*dim]);
                return Err(Error::Fit { what, size: *size, axis: *axis, ranks });
            }
            local[*dim] /= ranks;
            cuts.push(Cut { axis: *axis, dim: *dim, sections, rank, ranks });
        }
        Ok(Cuts { cuts, local })
    }
}

/// One axis' share of the work of cutting.
struct Cut {
    axis: Axis,
    dim: usize,
    sections: Vec<usize>,
    rank: usize,
    ranks: usize,
}

impl Cut {
    /// Where `rank`'s element lies in what was cut.
    fn before(&self, mut index: [usize; 2], rank: usize) -> [usize; 2] {
        let (mut local, mut start) = (index[self.dim], 0);
        for section in &self.sections {
            let share = section / self.ranks;
            if local < share {
                index[self.dim] = start + rank * share + local;
                break;
            }
            local -= share;
            start += section;
        }
        index
    }
}

/// How this rank's share was cut out of the whole.
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    /// The shape of the share.
    pub(crate) local: [usize; 2],
}

impl Cuts {
    /// Where this rank's element lies in the whole.
    pub(crate) fn whole_index(&self, local: [usize; 2]) -> [usize; 2] {
        self.cuts.iter().rev().fold(local, |index, cut| cut.before(index, cut.rank))
    }
    /// The whole matrix on the host, put together from all ranks' shares; `None` without values.
    pub(crate) fn gather<D: Kernels>(
        &self,
        mesh: &Mesh<D>,
        share: &Tensor<D>,
    ) -> Result<Option<Vec<D::Elem>>> {
        let (mut part, mut shape) = (share.clone(), self.local);
        for cut in self.cuts.iter().rev() {
            let [rows, cols] = shape;
            shape[cut.dim] *= cut.ranks;
            let all = mesh.group(cut.axis).all_gather(&part)?.read();
            let mut to = vec![D::Elem::ZERO; shape[0] * shape[1]];
            for (i, x) in all.into_iter().flatten().enumerate() {
                let (rank, i) = (i / (rows * cols), i % (rows * cols));
                let [r, c] = cut.before([i / cols, i % cols], rank);
                to[r * shape[1] + c] = x;
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
        let sections = vec![8, 4];
        let placement = Placement::default()
            .on(Axis::Dp, Placed::Split { dim: 1, sections: sections.clone() })
            .on(Axis::Tp, Placed::Split { dim: 1, sections });
        World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)])
            .unwrap()
            .run(|device: Cpu<f32>, mesh: Mesh<Cpu<f32>>| {
                let cuts = placement.cuts(&mesh, "w", [3, 12]).unwrap();
                assert_eq!(cuts.local, [3, 3]);
                let share = Tensor::from_fn(&device, Category::Buffers, 3, 3, |i| {
                    let [r, c] = cuts.whole_index([i / 3, i % 3]);
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
        let placement = Placement::default().on(Axis::Tp, Placed::Split { dim: 0, sections: vec![6] });
        let why = World::threads(&[(Axis::Tp, 4)])
            .unwrap()
            .run(|_: Cpu<f32>, mesh| placement.cuts(&mesh, "w", [6, 1]).map(drop))
            .unwrap_err();
        assert_eq!(why.reason, "tp=4 does not divide the 6 rows of w; tp can be 1, 2, 3, 6");
    }
}
