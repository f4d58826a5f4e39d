//! Sums of a parameter's gradient: over microbatches, over the ranks that have partial sums of it, and the
//! squares of its elements.
//!
//! ```text
//! whole at rest      the whole, summed in place
//! sharded at rest    the whole of a backward; then, in place of it, the shard of the sum so far
//! on the root        a reduce-scatter with one block, the root's, n elements, after each microbatch
//! ```
use crate::param::gradient::GradientStage;
use crate::param::placement::Band;
use crate::param::residence::{Kept, Residence};
use crate::param::shards::{matrix, rectangles};
use crate::param::tiles::{WeightTile, WeightTiles};
use crate::{Param, Result, Wide, filled};
use comm::Reduce;
use kernels::{Kernels, Write};
use tensor::{Category, Scalar, Tensor, ViewMut};

impl<D: Kernels> Param<D> {
    /// Lets `kernel` write the gradient if this is the first contribution of the step, else add to it.
    pub fn accumulate(&mut self, kernel: impl FnOnce(&D, ViewMut<D::Wide>, Write)) {
        let (local, [rows, cols], device) = (self.local(), self.sharding.room(), &self.device);
        let wide = device.wide();
        let (gradient, write) = self.gradient.contribute(|| {
            let mut fresh = Tensor::empty(wide, Category::Gradients, rows, cols);
            let numbers = local[0] * local[1];
            let room = rows * cols;
            if room > numbers {
                let beyond = fresh.view_mut().reshape(1, room).take_cols(numbers, room - numbers);
                wide.fill(beyond, Wide::<D>::ZERO);
            }
            fresh
        });
        kernel(device, matrix(gradient.view_mut(), local), write);
    }
    /// Adds a tile's contribution to the gradient: summed over the ranks, to the shard.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn add_tile(
        &mut self,
        tiles: &WeightTiles<D::Place>,
        tile: &WeightTile,
        mut dw: Tensor<D::Wide>,
    ) -> Result<()> {
        let (wide, numbers, [_, room]) = (dw.device().clone(), dw.len(), self.sharding.of_value(true).shape);
        self.sharding.sum_replicas(&wide, dw.view_mut(), tile.columns)?;
        let reduced = tiles.group.reduce_scatter_v(&dw.reshaped(numbers, 1), &tile.counts)?;
        let is_first = self.gradient.begin() || self.gradient.at.shard().is_none();
        let residence = &mut self.gradient.at;
        if residence.shard().is_none() {
            *residence = Residence::Shard(Kept::Here(Tensor::empty(&wide, Category::Gradients, 1, room)));
        }
        let mut shard = residence.shard_mut().expect("just made").here().view_mut();
        if is_first {
            wide.fill(shard.again(), Wide::<D>::ZERO);
        }
        for (rectangle, columns, first) in tiles.parts(tile) {
            let part = columns.of_mut(rectangle.of(shard.again()));
            let [rows, cols] = [part.rows(), part.cols()];
            wide.add(part, reduced.view().take_rows(first, rows * cols).reshape(rows, cols));
        }
        Ok(())
    }
    /// Prepares a whole gradient for its sum: fills it with zeros if there is no contribution, and sums parts
    /// that several ranks hold over their holders.
    pub(super) fn begin_sum(&mut self) -> Result<()> {
        if !self.gradient.has_contributions() {
            self.accumulate(|device, gradient, _| device.wide().fill(gradient, Wide::<D>::ZERO));
        }
        let (local, gradient) = (self.local(), self.gradient.at.whole_mut().expect("it has contributions"));
        let device = gradient.device().clone();
        let whole = Band { dim: 1, start: 0, len: local[1] };
        self.sharding.sum_replicas(&device, matrix(gradient.view_mut(), local), whole)
    }
    /// Takes a summed gradient back from a call; if it is sharded, adds this rank's shard of it to the shard
    /// kept at rest.
    pub(super) fn take_sum(&mut self, whole: Tensor<D::Wide>) {
        let Some(shards) = &self.sharding.shards else { return self.gradient.at.give_back(whole) };
        let device = whole.device();
        let row = whole.view().take_rows(shards.group.rank(), 1);
        let shard = if let Some(mut shard) = self.gradient.at.take_shard() {
            device.add(shard.here().view_mut(), row);
            shard
        } else {
            let mut shard = Tensor::empty(device, Category::Gradients, 1, row.cols());
            device.copy(shard.view_mut(), row);
            Kept::Here(shard)
        };
        self.gradient.at = Residence::Shard(shard);
    }
    /// Completes a gradient that is kept as a shard: fills the shard with zeros if there is no contribution.
    pub(super) fn fill_shard(&mut self) {
        if let (Some(shards), GradientStage::Last) = (&self.sharding.shards, self.gradient.stage) {
            let zeros = filled(self.device.wide(), Category::Gradients, [1, shards.len], Wide::<D>::ZERO);
            self.gradient.at = Residence::Shard(Kept::Here(zeros));
        }
    }
    /// Sums the gradient over ranks of other stages, after the sum over ranks of the same stage.
    pub(super) fn sum_twins(&mut self) -> Result<()> {
        if let (Some(twins), Some(gradient)) = (&self.sharding.twins, self.gradient.at.at_rest_mut()) {
            twins.all_reduce(gradient, Reduce::Sum)?;
        }
        Ok(())
    }
    /// Sums the gradient of a microbatch on the root, after its backward; other ranks' gradients and values
    /// end. Does nothing to a parameter that does not rest on the root.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn reduce(&mut self) -> Result<()> {
        let Some(counts) = self.sharding.rows_at_root() else { return Ok(()) };
        self.begin_sum()?;
        let gradient = self.gradient.at.whole_mut().expect("begun above");
        let sum = self.sharding.sum.named(self.name.clone()).reduce_scatter_v(gradient, &counts)?;
        if self.sharding.is_elsewhere() {
            self.value.outdate();
            self.gradient.at = Residence::Shard(Kept::Here(sum));
        } else {
            gradient.device().clone().copy(gradient.view_mut(), sum.view());
        }
        Ok(())
    }
    /// Adds the squares of the synced gradient's elements to `sum[1, 1]`. Elements that several ranks hold
    /// are added on the first of these ranks only: over all ranks with different elements, each counts once.
    pub(crate) fn add_norm2(&self, sum: &mut Tensor<D::Wide>) {
        if !self.sharding.counts() {
            return;
        }
        let gradient = self.gradient.at.at_rest().expect("no synced gradient");
        let device = self.device.wide();
        let Some(dim) = self.sharding.replicas.first().map(|(replica, _)| replica.part.dim) else {
            return device.add_norm2(sum.view_mut(), gradient.view());
        };
        let others = self
            .sharding
            .replicas
            .iter()
            .filter(|(replica, _)| !replica.first)
            .map(|(replica, _)| replica.part);
        for rectangle in rectangles(gradient.len(), self.sharding.of_value(true).from, self.local()) {
            let begin = rectangle.begin[dim];
            let (mut from, end) = (begin, begin + rectangle.shape[dim]);
            for other in others.clone().chain([Band { dim, start: end, len: 0 }]) {
                let to = other.start.clamp(from, end);
                let band = Band { dim, start: from - begin, len: to - from };
                device.add_norm2(sum.view_mut(), band.of(rectangle.of(gradient.view())));
                from = (other.start + other.len).clamp(to, end);
            }
        }
    }
}
