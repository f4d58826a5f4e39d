//! The value of a parameter: uses of it, and its versions.
//!
//! ```text
//! whole at rest       there for every use; after an update of its parts, gathered in place
//! sharded at rest     gathered beside the shard for each use
//! on the root         lent to other ranks for each microbatch: a broadcast of n elements; the gradient comes
//!                     back to the root: a reduce-scatter with one block, the root's, n elements
//! versions            clones that share memory until the value changes (copy on write)
//! ```
use crate::param::residence::Residence;
use crate::param::tiles::WeightTiles;
use crate::{Param, Result};
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Tensor, ViewMut};

const NOT_WHOLE: &str = "the value is not whole on this rank";

impl<D: Kernels> Param<D> {
    /// Returns the local value.
    ///
    /// # Panics
    /// If the value is sharded at rest and was not gathered.
    pub fn value(&self) -> Tensor<D> {
        let whole = self.value.whole();
        let whole = whole.unwrap_or_else(|| panic!("{} is sharded and was not gathered", self.name));
        let [rows, cols] = self.local();
        whole.clone().reshaped(rows, cols)
    }
    /// Returns the local value; or this rank's shard, and the tiles to gather from the shards.
    pub(crate) fn value_or_tiles(&self) -> (Tensor<D>, Option<Arc<WeightTiles<D::Place>>>) {
        let tiles = self.sharding.tiles.clone();
        let shard = || self.value.shard().expect("the value of a tiled weight is sharded").read();
        (if tiles.is_some() { shard() } else { self.value() }, tiles)
    }
    /// Lets products gather a value that is sharded at rest tile by tile, as many tiles as its sharding says.
    pub(crate) fn tiled(mut self) -> Self {
        let n = self.placement().rests.tiles;
        let local = self.local();
        let shards = self.sharding.shards.as_ref().filter(|_| n > 1);
        self.sharding.tiles = shards.map(|shards| Arc::new(WeightTiles::new(shards, local, n, &self.name)));
        self
    }
    /// Lets `kernel` write an untrained parameter: the local value, and its master if it has one. All ranks
    /// that hold the parameter must write the same values.
    ///
    /// # Panics
    /// If the parameter is trained.
    pub fn change(&mut self, kernel: impl FnOnce(&D, ViewMut<D>, Option<ViewMut<D::Wide>>)) {
        assert!(!self.placement().trained, "{} is trained: only an optimizer may change it", self.name);
        self.leave_versions();
        let value = self.value.whole_mut().expect(NOT_WHOLE).view_mut();
        let master = self.states.first_mut().map(|master| master.kept.here().view_mut());
        kernel(&self.device, value, master);
    }
    /// Takes the value for an all-gather, with only this rank's shard filled in; `None` if the value is
    /// gathered, or if products gather it tile by tile.
    pub(super) fn take_value(&mut self) -> Option<Tensor<D>> {
        match (&mut self.value, &self.sharding.shards) {
            (Residence::Outdated(_), _) => self.value.take(),
            (Residence::Shard(shard), Some(shards)) if self.sharding.tiles.is_none() => {
                let device = &self.device;
                let group = &shards.group;
                let mut whole = Tensor::empty(device, Category::Weights, group.size(), shards.len);
                shard.load();
                device.copy(whole.view_mut().take_rows(group.rank(), 1), shard.here().view());
                shard.free();
                self.value.give_back(whole);
                self.value.take()
            }
            _ => None,
        }
    }
    /// Copies the root's value to all ranks, for a forward and its backward. Does nothing to a parameter that
    /// does not rest on the root.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn replicate(&mut self) -> Result<()> {
        if !self.sharding.rooted {
            return Ok(());
        }
        let mut value = self.value.take().expect(NOT_WHOLE);
        self.sharding.sum.named(self.name.clone()).broadcast(&mut value, 0)?;
        self.value.give_back(value);
        Ok(())
    }
    /// Returns the value of this rank, which must be kept whole. The next update writes a copy, so this
    /// version stays as it is as long as the caller keeps it.
    ///
    /// # Panics
    /// If the value is sharded at rest.
    pub fn version(&mut self) -> Tensor<D> {
        self.value.whole().expect(NOT_WHOLE).clone()
    }
    /// Exchanges the value and another version of it.
    ///
    /// # Panics
    /// If the value is sharded at rest.
    pub fn exchange(&mut self, version: &mut Tensor<D>) {
        std::mem::swap(self.value.whole_mut().expect(NOT_WHOLE), version);
    }
    /// Prepares the value for a change: copies it if a version shares its memory.
    pub(super) fn leave_versions(&mut self) {
        if let Some(value) = self.value.whole_mut().filter(|value| value.is_shared()) {
            let mut copy = Tensor::empty(&self.device, Category::Weights, value.rows(), value.cols());
            self.device.copy(copy.view_mut(), value.view());
            *value = copy;
        }
    }
}
