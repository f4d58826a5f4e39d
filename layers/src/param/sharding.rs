//! Layout of one parameter over the ranks of a mesh: this rank's elements, the ranks that hold the same ones,
//! and the ranks that sum their gradient. Fixed once the model is built.
use crate::param::placement::{Cuts, Placement, Replica};
use crate::param::shards::Shards;
use crate::{AtRest, Result, ShardingStrategy};
use comm::{Axes, Axis, Group, Mesh};
use std::sync::Arc;
use tensor::{Place, count};

/// Layout of a parameter over ranks, from this rank's point of view.
pub(crate) struct ParamSharding<P: Place> {
    pub(crate) placement: Placement,
    pub(crate) cuts: Cuts,
    /// The parts that other ranks hold too, each with the group of its holders.
    pub(crate) replicas: Vec<(Replica, Group<P>)>,
    /// The ranks of other stages that hold the whole parameter too.
    pub(crate) twins: Option<Group<P>>,
    /// The ranks that have partial sums of the gradient.
    pub(crate) sum: Group<P>,
    /// This rank's shard, if the parameter is sharded at rest.
    pub(crate) shards: Option<Shards<P>>,
    /// True if this is the first rank along all axes that neither cut the parameter nor sum its gradient.
    first: bool,
    /// True if several ranks sum the gradient, and only the first of them, the root, keeps the parameter.
    pub(crate) rooted: bool,
}

impl<P: Place> ParamSharding<P> {
    /// Lays out the matrix `name` of this whole shape.
    ///
    /// # Errors
    /// If the ranks do not divide the matrix, or the placement's sharding is not possible.
    pub(crate) fn new(
        mesh: &Mesh<P>,
        name: &Arc<str>,
        shape: [usize; 2],
        placement: Placement,
    ) -> Result<Self> {
        let cuts = placement.cuts(mesh, name, shape)?;
        let held = |replica: Replica| {
            let holders = mesh.group(replica.axis).consecutive(replica.holders)?.named(name.clone());
            Ok((replica, holders))
        };
        let replicas = cuts.replicas().into_iter().map(held).collect::<Result<_>>()?;
        let sum = mesh.over(placement.summed())?;
        let numbers = count::product("the elements of a parameter", &cuts.local);
        let shards = Shards::of(&sum, placement.rests, numbers)?.filter(|_| placement.trained);
        if let Some(shards) = &shards {
            shards.hold(name, numbers);
        }
        let rooted = placement.rests == ShardingStrategy::ROOT && placement.trained && sum.size() > 1;
        let used = placement.different() | placement.summed();
        let of_experts = Axis::EXPERT[1..].iter().any(|axis| used.contains(*axis));
        let factoring = if of_experts { Axis::EXPERT } else { Axis::DENSE };
        let mut others = factoring[1..].iter().filter(|axis| !used.contains(**axis));
        let first = others.all(|axis| mesh.group(*axis).rank() == 0);
        Ok(Self { placement, cuts, replicas, twins: None, sum, shards, first, rooted })
    }
    /// Shape of a buffer for all shards, one per row; the shape of the local part if there are no shards.
    pub(crate) fn room(&self) -> [usize; 2] {
        self.shards.as_ref().map_or(self.cuts.local, |shards| [shards.group.size(), shards.len])
    }
    /// Shape of optimizer state at rest on this rank, and the index of its first element in the local part.
    pub(crate) fn at_rest(&self) -> ([usize; 2], usize) {
        if self.is_elsewhere() {
            return ([0, self.cuts.local[1]], 0);
        }
        self.shards.as_ref().map_or((self.cuts.local, 0), |shards| ([1, shards.len], shards.from()))
    }
    /// Returns whether the parameter rests on the root, and this is another rank.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.rooted && self.sum.rank() > 0
    }
    /// Returns the number of rows at rest on each rank, if the parameter rests on the root.
    pub(crate) fn rows_at_root(&self) -> Option<Vec<usize>> {
        let rows = |rank| if rank == 0 { self.cuts.local[0] } else { 0 };
        self.rooted.then(|| (0..self.sum.size()).map(rows).collect())
    }
    /// Returns whether this rank keeps only its shard of the picked tensor: false if the rank is alone or the
    /// parameter is not trained.
    pub(crate) fn keeps(&self, pick: impl Fn(ShardingStrategy) -> AtRest) -> bool {
        pick(self.placement.rests) != AtRest::Whole && self.shards.is_some()
    }
    /// Returns whether elements count on this rank: elements that several ranks hold (of other stages, or of
    /// other subgroups of shards) count on the first of these ranks, those of a root on the root.
    pub(crate) fn counts(&self) -> bool {
        let peers = self.shards.as_ref().map(|shards| &shards.peers);
        !self.is_elsewhere() && self.twins.iter().chain(peers).all(|holders| holders.rank() == 0)
    }
    /// Returns whether this rank is the lowest one that holds its elements of a tensor, sharded at rest or
    /// whole, but for pieces with several holders.
    pub(crate) fn saves(&self, sharded: bool) -> bool {
        let holders = self.shards.as_ref().filter(|_| sharded).map_or(&self.sum, |shards| &shards.peers);
        self.first && self.twins.iter().chain([holders]).all(|holders| holders.rank() == 0)
    }
    /// The axes along which ranks have different elements that count.
    pub(crate) fn different(&self) -> Axes {
        let apart = self.shards.is_some() || self.rooted;
        self.placement.different() | if apart { self.placement.summed() } else { Axes::default() }
    }
}
