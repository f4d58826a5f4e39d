//! A rank's groups, one per axis.
use crate::axis::Axis;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::ghost::Ghost;
use crate::grid::Grid;
use crate::group::Group;
use crate::ledger::{Counts, Ledger};
use kernels::{Kernels, Meta};
use std::sync::Arc;
use tensor::Device;

/// This rank's groups, one per axis: along each, the ranks that differ from it along that axis only. Clones are
/// cheap, and share one ledger.
pub struct Mesh<D: Device> {
    groups: Vec<Group<D>>, // at the axis
    rank: usize,
    size: usize,
    counts: Arc<Counts>,
}

impl<D: Device> Clone for Mesh<D> {
    fn clone(&self) -> Self {
        Self { groups: self.groups.clone(), counts: self.counts.clone(), ..*self }
    }
}

impl<D: Device> Mesh<D> {
    /// A world of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(&Grid::alone(), 0, |_, _| Arc::new(Ghost))
    }
    /// The groups of one rank of a world; `engine` gives that of the group of these members along an axis.
    pub(crate) fn new(
        grid: &Grid,
        rank: usize,
        mut engine: impl FnMut(Axis, &Arc<[usize]>) -> Arc<dyn Engine<D>>,
    ) -> Self {
        let counts = Arc::<Counts>::default();
        let group = |&axis: &Axis| {
            let members: Arc<[usize]> = grid.members(axis, rank).into();
            let engine = engine(axis, &members);
            Group::new(engine, axis, grid.coordinate(axis, rank), members, counts.clone())
        };
        Self {
            groups: Axis::ALL.iter().map(group).collect(),
            rank,
            size: grid.ranks(),
            counts: counts.clone(),
        }
    }
    /// This rank's group along an axis; a group of one where the world is not split along it.
    pub fn group(&self, axis: Axis) -> &Group<D> {
        &self.groups[axis as usize]
    }
    /// Every axis with this rank's group, innermost first.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = (Axis, &Group<D>)> {
        self.groups.iter().map(|group| (group.axis(), group)).rev()
    }
    /// This rank, counted in the world.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many ranks the world has.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Where this rank stands along every axis, outermost first.
    pub fn coordinates(&self) -> Vec<(Axis, usize)> {
        self.groups.iter().map(|group| (group.axis(), group.rank())).collect()
    }
    /// What this rank has said so far in all its groups.
    pub fn ledger(&self) -> Ledger {
        self.counts.snapshot()
    }
}

impl<D: Kernels> Mesh<Meta<D>> {
    /// One rank of a world of these sizes, without its peers: memory and traffic are counted as they would be. Axes
    /// left out have size 1; there may be any number of ranks.
    ///
    /// # Errors
    /// [`CommError::EmptyAxis`], [`CommError::AxisTwice`]; [`CommError::TooManyRanks`] if their number overflows;
    /// [`CommError::NoSuchRank`].
    pub fn ghost(sizes: &[(Axis, usize)], rank: usize) -> Result<Self> {
        let grid = Grid::new(sizes, usize::MAX)?;
        if rank >= grid.ranks() {
            return Err(CommError::NoSuchRank { rank, size: grid.ranks() });
        }
        Ok(Self::new(&grid, rank, |_, _| Arc::new(Ghost)))
    }
}
