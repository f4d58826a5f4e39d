//! Layout of one parameter over the ranks of a mesh: this rank's elements, the ranks that hold the same ones,
//! and the ranks that sum their gradient. Fixed once the model is built. The layouts of the parameter's other
//! tensors follow from that of its value.
use crate::param::drawn;
use crate::param::placement::{Band, Cuts, Placement, Replica};
use crate::param::shards::Shards;
use crate::param::tiles::WeightTiles;
use crate::{AtRest, Error, ParamValues, Result, ShardingStrategy};
use comm::{Axes, Axis, Group, Mesh, Reduce};
use kernels::Kernels;
use shape::{Like, StateInfo};
use std::sync::Arc;
use tensor::{Category, Device, Place, Tensor, ViewMut, count};

/// Layout of a parameter over ranks, from this rank's point of view.
pub(crate) struct ParamSharding<P: Place> {
    pub(crate) placement: Placement,
    pub(crate) cuts: Arc<Cuts>,
    /// The parts that other ranks hold too, each with the group of its holders.
    pub(crate) replicas: Vec<(Replica, Group<P>)>,
    /// The ranks of other stages that hold the whole parameter too.
    pub(crate) twins: Option<Group<P>>,
    /// The ranks that have partial sums of the gradient.
    pub(crate) sum: Group<P>,
    /// This rank's shard, if the parameter is sharded at rest.
    pub(crate) shards: Option<Shards<P>>,
    /// Number of elements that no two shards share: whole blocks of the optimizer's state.
    pub(crate) grain: usize,
    /// The tiles, if products gather the value tile by tile.
    pub(crate) tiles: Option<Arc<WeightTiles<P>>>,
    /// True if this is the first rank along all axes that neither cut the parameter nor sum its gradient.
    first: bool,
    /// True if several ranks sum the gradient, and only the first of them, the root, keeps the parameter.
    pub(crate) rooted: bool,
}

/// Layout of one of a parameter's tensors at rest on this rank.
#[derive(Clone)]
pub(crate) struct TensorLayout {
    /// The cuts that make the local part.
    pub(crate) cuts: Arc<Cuts>,
    /// Shape of the tensor at rest.
    pub(crate) shape: [usize; 2],
    /// Index of its first element in the local part.
    pub(crate) from: usize,
    /// True if it is a shard of the local part.
    pub(crate) is_shard: bool,
}

impl TensorLayout {
    /// Sets a tensor at rest to values by global index.
    pub(crate) fn set<E: Device>(&self, to: &mut Tensor<E>, values: &ParamValues<E::Elem>) -> Result<()> {
        to.write_slices(&mut |first, to| {
            let fill = |first, to: &mut [E::Elem]| self.cuts.fill(first, to, values);
            drawn::by_cores(self.from + first, to, &fill);
        });
        values.check()
    }
}

impl<P: Place> ParamSharding<P> {
    /// Lays out the matrix `name` of this whole shape. Its shards are cut between the blocks of `states`.
    ///
    /// # Errors
    /// If the ranks do not divide the matrix or cut it inside a block, or the placement's sharding is not
    /// possible.
    pub(crate) fn new(
        mesh: &Mesh<P>,
        name: &Arc<str>,
        shape: [usize; 2],
        placement: Placement,
        states: &[StateInfo],
    ) -> Result<Self> {
        let cuts = Arc::new(placement.cuts(mesh, name, shape)?);
        let with_holders = |replica: Replica| {
            let holders = mesh.group(replica.axis).consecutive(replica.holders)?.named(name.clone());
            Ok((replica, holders))
        };
        let replicas = cuts.replicas().into_iter().map(with_holders).collect::<Result<_>>()?;
        let sum = mesh.over(placement.summed())?;
        let numbers = count::product("the elements of a parameter", &cuts.local);
        let grain = grain(states, cuts.local[1]);
        let shards = Shards::of(&sum, placement.rests, (numbers, grain))?.filter(|_| placement.trained);
        if let Some(shards) = &shards {
            shards.hold(name, numbers);
        }
        let rooted = placement.rests == ShardingStrategy::ROOT && placement.trained && sum.size() > 1;
        let used = placement.different() | placement.summed();
        let of_experts = Axis::EXPERT[1..].iter().any(|axis| used.contains(*axis));
        let factoring = if of_experts { Axis::EXPERT } else { Axis::DENSE };
        let mut others = factoring[1..].iter().filter(|axis| !used.contains(**axis));
        let first = others.all(|axis| mesh.group(*axis).rank() == 0);
        let sharding =
            Self { placement, cuts, replicas, twins: None, sum, shards, grain, tiles: None, first, rooted };
        if sharding.placement.trained {
            states.iter().try_for_each(|state| sharding.of_state(state.like, name).map(drop))?;
        }
        Ok(sharding)
    }
    /// Shape of a buffer for all shards, one per row; the shape of the local part if there are no shards.
    pub(crate) fn room(&self) -> [usize; 2] {
        self.shards.as_ref().map_or(self.cuts.local, |shards| [shards.group.size(), shards.len])
    }
    /// Returns the layout of a value, or of a tensor like it, at rest: of the shard, or of all.
    pub(crate) fn of_value(&self, as_shard: bool) -> TensorLayout {
        let cuts = self.cuts.clone();
        match &self.shards {
            _ if self.is_elsewhere() => {
                TensorLayout { shape: [0, cuts.local[1]], cuts, from: 0, is_shard: false }
            }
            Some(shards) if as_shard => {
                TensorLayout { cuts, shape: [1, shards.len], from: shards.from(), is_shard: true }
            }
            _ => TensorLayout { shape: cuts.local, cuts, from: 0, is_shard: false },
        }
    }
    /// Returns the layout of state at rest.
    ///
    /// # Errors
    /// If the parameter is cut inside a block.
    pub(crate) fn of_state(&self, like: Like, name: &str) -> Result<TensorLayout> {
        let value = self.of_value(true);
        let cols = self.cuts.local[1];
        Ok(match like {
            Like::Value => value,
            Like::Blocks(n) => {
                let cuts = Arc::new(self.cuts.blocks(n, name)?);
                let [rows, numbers] = value.shape;
                let before = |element| like.before(element, cols);
                if !value.is_shard {
                    return Ok(TensorLayout { shape: [rows, cuts.local[1]], cuts, ..value });
                }
                if !self.grain.is_multiple_of(n) && !self.grain.is_multiple_of(cols) {
                    let wanted = format!("a multiple of {n}, the elements of a block");
                    return Err(Error::size(format!("the grain of shards of {name}"), self.grain, wanted));
                }
                TensorLayout { shape: [1, before(numbers)], from: before(value.from), cuts, ..value }
            }
            Like::One => {
                TensorLayout { cuts: Arc::new(self.cuts.one()), shape: [1, 1], from: 0, is_shard: false }
            }
        })
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
    /// Sums parts of these columns of a gradient that several ranks hold over their holders.
    pub(crate) fn sum_replicas<W: Kernels<Place = P>>(
        &self,
        device: &W,
        mut gradient: ViewMut<W>,
        columns: Band,
    ) -> Result<()> {
        for (Replica { part, .. }, holders) in &self.replicas {
            let Some(part) = part.within(columns) else { continue };
            let target = part.of_mut(gradient.again());
            let mut sum = Tensor::empty(device, Category::Buffers, target.rows(), target.cols());
            device.copy(sum.view_mut(), target.read());
            holders.all_reduce(&mut sum, Reduce::Sum)?;
            device.copy(part.of_mut(gradient.again()), sum.view());
        }
        Ok(())
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

/// Returns the number of elements that no two shards share, of a local part with rows of `cols` elements: so
/// many that each shard has whole blocks of these states. Blocks do not cross the end of a row.
fn grain(states: &[StateInfo], cols: usize) -> usize {
    let blocks = || states.iter().filter_map(|of| if let Like::Blocks(n) = of.like { Some(n) } else { None });
    let is_whole = |grain: &usize| cols.is_multiple_of(*grain) && blocks().all(|n| grain.is_multiple_of(n));
    (1..cols).find(is_whole).unwrap_or(cols.max(1))
}
