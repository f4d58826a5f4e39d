//! Elements of a parameter's matrices that each rank keeps at rest.
use crate::param::placement::matrices::ParamMatrix;
use crate::param::placement::{CutRectangle, Cuts};
use crate::{Param, Result};
use comm::{Axes, Group, Mesh};
use kernels::Kernels;
use std::collections::HashMap;

/// Elements of a parameter that a rank keeps at rest.
pub(crate) struct RankShare {
    /// Number of the set of ranks, with every element in it, that the rank is in.
    pub(crate) set: usize,
    rectangles: Vec<CutRectangle>,
}

/// Elements of a parameter that each rank of a group keeps.
pub(crate) struct RankShares {
    pub(crate) all: Vec<RankShare>,
    rooted: bool, // only the first set keeps anything
}

impl RankShares {
    /// Returns the elements of a matrix that a rank of the group keeps, as rectangles of its list, and their
    /// places in the matrix.
    pub(crate) fn parts(
        &self,
        rank: usize,
        matrix: &ParamMatrix,
    ) -> impl Iterator<Item = (CutRectangle, [usize; 2])> {
        let ParamMatrix { begin, shape, .. } = *matrix;
        self.all[rank].rectangles.iter().filter_map(move |rectangle| rectangle.within(begin, shape))
    }
    /// Returns those of a rank's [`parts`](Self::parts) that it sends to a home: a rank of the home's set
    /// sends what it is the first to keep.
    pub(crate) fn sent(
        &self,
        rank: usize,
        home: usize,
        matrix: &ParamMatrix,
    ) -> impl Iterator<Item = (CutRectangle, [usize; 2])> {
        let sends = self.rooted || self.all[rank].set == self.all[home].set;
        self.parts(rank, matrix).filter(move |(part, _)| sends && part.first)
    }
}

impl<D: Kernels> Param<D> {
    /// True if it is trained, and a matrix of a block or several.
    pub(crate) fn is_matrix(&self) -> bool {
        self.placement().trained && shape::is_matrix_of_block(&self.name, self.shape)
    }
    /// Returns its matrices.
    pub fn matrices(&self) -> Vec<ParamMatrix> {
        self.placement().matrices.matrices(self.shape)
    }
    /// The axes whose ranks keep the parameter's elements at rest, each at least once in every set of
    /// replicas.
    pub(crate) fn kept_over(&self) -> Axes {
        self.placement().different() | self.placement().summed()
    }
    /// Returns what each rank of the group over [`kept_over`](Self::kept_over) keeps.
    pub(crate) fn shares(&self, mesh: &Mesh<D::Place>, group: &Group<D::Place>) -> RankShares {
        let cuts = &self.sharding.cuts;
        let rooted = self.sharding.rooted;
        let [rows, cols] = cuts.local;
        let (shards, len) = match &self.sharding.shards {
            Some(shards) => (shards.group.size(), shards.len),
            None => (1, rows * cols),
        };
        let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
        let share = |rank| {
            let place: Vec<_> = cuts.axes().map(|axis| mesh.coordinate(axis, rank)).collect();
            let mine = Cuts::of_rank(cuts, |axis| mesh.coordinate(axis, rank));
            let number = seen.entry(place).or_default();
            let (set, begin) = (*number / shards, *number % shards * len);
            *number += 1;
            let rectangles = if rooted && set > 0 { Vec::new() } else { mine.rectangles(begin, len) };
            RankShare { set, rectangles }
        };
        RankShares { all: group.ranks().map(share).collect(), rooted }
    }
}

/// Returns the group of the ranks that keep a parameter's elements.
pub(crate) fn group_of<D: Kernels>(param: &Param<D>, mesh: &Mesh<D::Place>) -> Result<Group<D::Place>> {
    Ok(mesh.over(param.kept_over())?.named("whole matrices"))
}
