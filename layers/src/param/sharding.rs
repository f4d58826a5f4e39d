//! How one parameter is laid out over the ranks of a mesh: which numbers this rank holds, who holds the same ones, and
//! with whom it sums their gradient. Nothing here changes after the model is built.
use crate::param::placement::{Cuts, Placement, Replica};
use crate::param::shards::Shards;
use crate::{Rest, Rests, Result};
use comm::{Axes, Group, Mesh};
use std::sync::Arc;
use tensor::{Place, count};

/// The layout of a parameter over ranks, as this rank sees it.
pub(crate) struct Sharding<P: Place> {
    pub(crate) placement: Placement,
    pub(crate) cuts: Cuts,
    /// The parts that other ranks hold, too, each with the ranks that hold it.
    pub(crate) replicas: Vec<(Replica, Group<P>)>,
    /// The ranks of other stages that hold all of it, too.
    pub(crate) twins: Option<Group<P>>,
    /// The ranks that have partial sums of the gradient.
    pub(crate) sum: Group<P>,
    /// This rank's shard, where the parameter is sharded between its uses.
    pub(crate) shards: Option<Shards<P>>,
}

impl<P: Place> Sharding<P> {
    /// The layout of the matrix `name` of this whole shape.
    ///
    /// # Errors
    /// If the ranks do not divide it, or it cannot rest as the placement says.
    pub(crate) fn new(
        mesh: &Mesh<P>,
        name: &Arc<str>,
        shape: [usize; 2],
        placement: Placement,
    ) -> Result<Self> {
        let cuts = placement.cuts(mesh, name, shape)?;
        let held = |replica: Replica| {
            let holders = mesh.group(replica.axis).blocks(replica.holders)?.named(name.clone());
            Ok((replica, holders))
        };
        let replicas = cuts.replicas().into_iter().map(held).collect::<Result<_>>()?;
        let sum = mesh.over(placement.summed())?;
        let numbers = count::product("the numbers of a parameter", &cuts.local);
        let shards = Shards::of(&sum, placement.rests, numbers)?.filter(|_| placement.trained);
        if let Some(shards) = &shards {
            shards.hold(name, numbers);
        }
        Ok(Self { placement, cuts, replicas, twins: None, sum, shards })
    }
    /// The shape of memory for all shards, one a row; this rank's share itself where there are none.
    pub(crate) fn room(&self) -> [usize; 2] {
        self.shards.as_ref().map_or(self.cuts.local, |shards| [shards.group.size(), shards.len])
    }
    /// The shape in which optimizer state rests on this rank, and the number of the share that is its first.
    pub(crate) fn at_rest(&self) -> ([usize; 2], usize) {
        self.shards.as_ref().map_or((self.cuts.local, 0), |shards| ([1, shards.len], shards.from()))
    }
    /// Returns whether this rank keeps only its shard of a tensor that rests so: there is none where the rank is alone,
    /// or the parameter is not trained.
    pub(crate) fn keeps(&self, pick: impl Fn(Rests) -> Rest) -> bool {
        pick(self.placement.rests) != Rest::Whole && self.shards.is_some()
    }
    /// Returns whether the numbers count on this rank: numbers that several ranks hold (of other stages, or of other
    /// blocks of shards) count on the first of them.
    pub(crate) fn counts(&self) -> bool {
        let peers = self.shards.as_ref().map(|shards| &shards.peers);
        self.twins.iter().chain(peers).all(|holders| holders.rank() == 0)
    }
    /// The axes along which ranks have different numbers that count.
    pub(crate) fn different(&self) -> Axes {
        let shards = self.shards.as_ref().map_or(Axes::default(), |_| self.placement.summed());
        self.placement.different() | shards
    }
}
