//! A parameter: this rank's local part of a matrix, and of its gradient.
mod drawn;
mod gathering;
pub mod held;
pub mod keeper;
mod kept;
pub mod optimizer;
pub mod origin;
pub mod placement;
mod root;
pub mod saved;
mod sharding;
pub mod shards;
mod state;
pub(crate) mod tiles;
pub mod values;
mod versions;
pub mod weight;

pub use origin::Wide;

use crate::param::kept::Kept;
use crate::param::origin::ParamOrigin;
use crate::param::placement::{Band, Placement};
use crate::param::sharding::ParamSharding;
use crate::param::shards::{WholeOrShard, matrix, rectangles};
use crate::param::tiles::{WeightTile, WeightTiles};
use crate::{Draw, Error, ParamValues, Result};
use comm::Group;
use kernels::{Kernels, Write};
use std::sync::Arc;
use tensor::{Category, Device, Scalar, Store, Tensor, View, ViewMut};

/// This rank's local part of a parameter. Layers read it through the weights of [`weight`], which may gather
/// or load it, and add to its gradient through `accumulate`. No other code accesses it.
pub struct Param<D: Kernels> {
    name: Arc<str>,
    shape: [usize; 2],
    sharding: ParamSharding<D::Place>,
    value: WholeOrShard<D>,
    tiles: Option<Arc<WeightTiles<D::Place>>>, // if products gather the value tile by tile
    kept_versions: bool,                       // `version` was called since the last change
    stale: bool,                               // in the whole value, only what this rank keeps is up to date
    master: Option<Kept<D::Wide>>,             // of a narrow trained parameter: its value before rounding
    moments: Vec<Kept<D::Wide>>,               // optimizer state, sharded at rest as the state is
    store: Option<Store>,                      // of its state, if that is kept off the device
    device: D,
    gradient: WholeOrShard<D::Wide>, // allocated at the first contribution: inference has none
    contributed: Contributed,
    lent: Option<(usize, Option<usize>)>, // once complete: its bucket, and the call in the bucket
    call_names: [Option<Arc<str>>; 2],    // names of the calls for its gradient and its value
}

/// The parts of a gradient that have contributions of this step.
#[derive(Clone, Copy, Default)]
struct Contributed {
    whole: bool,
    shard: bool,
}

/// Arguments of an optimizer kernel: the value, the master of a narrow one, and `MOMENTS` moments.
type Changed<'a, D, const MOMENTS: usize> =
    (ViewMut<'a, D>, Option<ViewMut<'a, <D as Kernels>::Wide>>, [ViewMut<'a, <D as Kernels>::Wide>; MOMENTS]);

impl<D: Kernels> Param<D> {
    /// Creates this rank's local part of the matrix `name` of this whole shape, with values by global index.
    ///
    /// # Errors
    /// If the ranks do not divide the matrix, the values are missing, or the placement's sharding is not
    /// possible.
    pub fn new<'a>(
        at: impl Into<ParamOrigin<'a, D>>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        let (at, name) = (at.into(), name.into());
        let trained = placement.trained;
        let sharding = ParamSharding::new(at.mesh, &name, shape, placement)?;
        let mut param = Self {
            name,
            shape,
            sharding,
            value: WholeOrShard { whole: None, shard: None },
            tiles: None,
            kept_versions: false,
            stale: false,
            master: None,
            moments: Vec::new(),
            store: at.store.filter(|_| at.learns && trained).cloned(),
            device: at.device.clone(),
            gradient: WholeOrShard { whole: None, shard: None },
            contributed: Contributed::default(),
            lent: None,
            call_names: [None, None],
        };
        let numbers =
            || Ok::<_, Error>(param.sharding.placement.masked(at.values.of(&param.name, shape, draw)?));
        let (keeps, at_rest) = (param.sharding.keeps(|rests| rests.value), param.sharding.at_rest());
        let ([rows, cols], from) = if keeps { at_rest } else { (param.sharding.room(), 0) };
        let narrow = numbers()?.map(|_, wide| D::Elem::narrow(wide));
        let away = |here| if param.store.is_some() { Category::InFlight } else { here };
        let of_value = if keeps { away(Category::Weights) } else { Category::Weights };
        let mut value = Tensor::empty(at.device, of_value, rows, cols);
        param.stale = param.sharding.is_elsewhere();
        if !param.stale {
            param.set(&mut value, from, &narrow)?;
        }
        let ([rows, cols], from) = at_rest;
        let master = || {
            let mut master = Tensor::empty(at.device.wide(), away(Category::Optimizer), rows, cols);
            param.set(&mut master, from, &numbers()?)?;
            Ok::<_, Error>(Kept::new(param.store.as_ref(), master))
        };
        let master = (at.learns && D::Elem::NARROW).then(master).transpose()?;
        if keeps {
            param.value.shard = Some(Kept::new(param.store.as_ref(), value));
        } else {
            param.value.whole = Some(value);
        }
        Ok(Self { master, ..param })
    }
    /// Sets a tensor to the values of this rank's local part, from element `from` of it on.
    fn set<E: Device>(&self, to: &mut Tensor<E>, from: usize, numbers: &ParamValues<E::Elem>) -> Result<()> {
        let cuts = &self.sharding.cuts;
        to.write_slices(&mut |first, to| {
            drawn::by_cores(from + first, to, &|first, to| cuts.fill(first, to, numbers));
        });
        numbers.check()
    }
    /// Returns its canonical name: `blocks.0.attention.qkv`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
    /// Returns the names of the calls that last summed its gradient and gathered its value: its bucket's
    /// name, or its own.
    pub fn call_names(&self) -> [&str; 2] {
        self.call_names.each_ref().map(|unit| unit.as_ref().map_or(&*self.name, |unit| unit))
    }
    /// Returns `[rows, columns]` of the whole.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }
    /// Returns `[rows, columns]` of this rank's local part.
    pub fn local(&self) -> [usize; 2] {
        self.sharding.cuts.local
    }
    /// Returns its placement over the ranks.
    pub fn placement(&self) -> &Placement {
        &self.sharding.placement
    }
    /// Returns whether weight decay applies: to matrices, not to gains and biases.
    pub fn decays(&self) -> bool {
        self.shape[0] > 1
    }
    /// Returns its device.
    pub fn device(&self) -> &D {
        &self.device
    }
    /// Returns the local value.
    ///
    /// # Panics
    /// If the value is sharded at rest and was not gathered.
    pub(crate) fn value(&self) -> Tensor<D> {
        let whole = self.value.whole.as_ref().filter(|_| !self.stale);
        let whole = whole.unwrap_or_else(|| panic!("{} is sharded and was not gathered", self.name));
        let [rows, cols] = self.local();
        whole.clone().reshaped(rows, cols)
    }
    /// Lets `kernel` write an untrained parameter: the local value, and its master if it has one. All ranks
    /// that hold the parameter must write the same values.
    ///
    /// # Panics
    /// If the parameter is trained.
    pub fn change(&mut self, kernel: impl FnOnce(&D, ViewMut<D>, Option<ViewMut<D::Wide>>)) {
        assert!(
            !self.sharding.placement.trained,
            "{} is trained: only an optimizer may change it",
            self.name
        );
        let device = self.device().clone();
        self.leave_versions();
        let value = self.value.whole.as_mut().expect("the value is not whole").view_mut();
        kernel(&device, value, self.master.as_mut().map(|master| master.here().view_mut()));
    }
    /// Lets `kernel` write the gradient if this is the first contribution of the step, else add to it.
    pub(crate) fn accumulate(&mut self, kernel: impl FnOnce(&D, ViewMut<D::Wide>, Write)) {
        let write =
            if std::mem::replace(&mut self.contributed.whole, true) { Write::Add } else { Write::Set };
        let (local, [rows, cols], device) = (self.local(), self.sharding.room(), self.device().clone());
        let wide = device.wide();
        if write == Write::Set && !self.contributed.shard {
            self.gradient.shard = None; // of the last step
        }
        let gradient = self.gradient.whole.get_or_insert_with(|| {
            let mut fresh = Tensor::empty(wide, Category::Gradients, rows, cols);
            let (numbers, room) = (local[0] * local[1], rows * cols);
            if room > numbers {
                let beyond = fresh.view_mut().reshape(1, room).take_cols(numbers, room - numbers);
                wide.fill(beyond, Wide::<D>::ZERO);
            }
            fresh
        });
        kernel(&device, matrix(gradient.view_mut(), local), write);
    }
    /// Lets products gather a value that is sharded at rest tile by tile, as many tiles as its sharding says.
    pub(crate) fn tiled(self) -> Self {
        let (n, local) = (self.placement().rests.tiles, self.local());
        let shards = self.sharding.shards.as_ref().filter(|_| n > 1);
        Self { tiles: shards.map(|shards| Arc::new(WeightTiles::new(shards, local, n, &self.name))), ..self }
    }
    /// Returns its tiles, if products gather the value tile by tile.
    pub(crate) fn tiles(&self) -> Option<&Arc<WeightTiles<D::Place>>> {
        self.tiles.as_ref()
    }
    /// Returns the local value; or this rank's shard, and the tiles to gather from the shards.
    pub(crate) fn lend(&self) -> (Tensor<D>, Option<Arc<WeightTiles<D::Place>>>) {
        let shard = || self.value.shard.as_ref().expect("the value of a tiled weight is sharded").read();
        let tiles = self.tiles.clone();
        (if tiles.is_some() { shard() } else { self.value() }, tiles)
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
        let (wide, numbers, [_, room]) = (dw.device().clone(), dw.len(), self.sharding.at_rest().0);
        self.sharding.sum_held(&wide, dw.view_mut(), tile.columns)?;
        let own = tiles.group.reduce_scatter_v(&dw.reshaped(numbers, 1), &tile.counts)?;
        let fresh = || Kept::Here(Tensor::empty(&wide, Category::Gradients, 1, room));
        let mut shard = self.gradient.shard.get_or_insert_with(fresh).here().view_mut();
        if !std::mem::replace(&mut self.contributed.shard, true) {
            wide.fill(shard.again(), Wide::<D>::ZERO);
        }
        for (rectangle, columns, first) in tiles.parts(tile) {
            let part = columns.of_mut(rectangle.of(shard.again()));
            let [rows, cols] = [part.rows(), part.cols()];
            wide.add(part, own.view().take_rows(first, rows * cols).reshape(rows, cols));
        }
        Ok(())
    }
    /// Declares that these ranks, of other stages, hold the whole parameter too: each of them has a partial
    /// sum of its gradient.
    pub fn tie_with(&mut self, group: &Group<D::Place>) {
        self.sharding.twins = Some(group.named(self.name.clone()));
    }
    /// Adds the squares of the synced gradient's elements to `sum[1, 1]`. Elements that several ranks hold
    /// are added on the first of these ranks only: over all ranks with different elements, each counts once.
    pub(crate) fn add_norm2(&self, sum: &mut Tensor<D::Wide>) {
        if !self.sharding.counts() {
            return;
        }
        let (gradient, device) = (self.gradient.rest().expect("no synced gradient"), self.device().wide());
        let Some(dim) = self.sharding.replicas.first().map(|(replica, _)| replica.part.dim) else {
            return device.add_norm2(sum.view_mut(), gradient.view());
        };
        let others = self
            .sharding
            .replicas
            .iter()
            .filter(|(replica, _)| !replica.first)
            .map(|(replica, _)| replica.part);
        for rectangle in rectangles(gradient.len(), self.sharding.at_rest().1, self.local()) {
            let (begin, len) = (rectangle.begin[dim], rectangle.shape[dim]);
            let (mut from, end) = (begin, begin + len);
            for other in others.clone().chain([Band { dim, start: end, len: 0 }]) {
                let to = other.start.clamp(from, end);
                let own = Band { dim, start: from - begin, len: to - from };
                device.add_norm2(sum.view_mut(), own.of(rectangle.of(gradient.view())));
                from = (other.start + other.len).clamp(to, end);
            }
        }
    }
    /// Runs an optimizer's kernel on the value, its master and its moments with the synced gradient, on the
    /// parts kept at rest, some rows (or elements of a shard) at a time. Ends the step: the next contribution
    /// to the gradient overwrites it.
    ///
    /// If there is a `sum`, adds the gradient's squares to it as [`add_norm2`](Self::add_norm2) does. If no
    /// other rank holds the rows, this happens just before the kernel uses them: memory is read once for
    /// both.
    ///
    /// # Panics
    /// If there are fewer than `MOMENTS` moments.
    pub(crate) fn update<const MOMENTS: usize>(
        &mut self,
        mut sum: Option<&mut Tensor<D::Wide>>,
        mut kernel: impl FnMut(&D, Changed<D, MOMENTS>, View<D::Wide>),
    ) {
        if (!self.sharding.replicas.is_empty() || !self.sharding.counts())
            && let Some(sum) = sum.take()
        {
            self.add_norm2(sum);
        }
        let (device, dim) = (self.device().clone(), usize::from(self.sharding.shards.is_some()));
        self.leave_versions();
        let gradient = self.gradient.rest().expect("no synced gradient");
        self.stale |= self.sharding.shards.is_some();
        let mut value = self.value.own(self.sharding.shards.as_ref());
        let [n, each] = [gradient.shape()[dim], gradient.shape()[1 - dim].max(1)];
        let together = (D::TOGETHER / each).max(1);
        let gradient = gradient.view();
        let moments = self.moments.first_chunk_mut::<MOMENTS>().expect("the moments are not allocated");
        for start in (0..n).step_by(together) {
            let part = Band { dim, start, len: together.min(n - start) };
            let gradient = part.of(gradient);
            if let Some(sum) = &mut sum {
                device.wide().add_norm2(sum.view_mut(), gradient);
            }
            let master = self.master.as_mut().map(|x| part.of_mut(x.here().view_mut()));
            let moments = moments.each_mut().map(|x| part.of_mut(x.here().view_mut()));
            kernel(&device, (part.of_mut(value.again()), master, moments), gradient);
        }
        self.contributed = Contributed::default();
    }
}

#[cfg(test)]
mod tests;
