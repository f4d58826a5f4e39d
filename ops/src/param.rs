//! A parameter: this rank's local part of a matrix, of its gradient, and of an optimizer's state.
//!
//! ```text
//! what it is         origin, values · placement and its cuts · sharding, shards · weight: as layers use it
//! its tensors        value · gradient · state: each has a residence · tensors: the list of those at rest
//! what it does       uses of the value · sums of the gradient · update · gathering as a whole matrix
//! many parameters    keeper: gather, gather ahead, release, finish, update · buckets: calls that they share
//! ```
mod buckets;
mod drawn;
mod gathering;
pub(crate) mod gradient;
pub mod keeper;
pub(crate) mod matrices;
pub mod origin;
pub mod part;
pub mod placement;
pub(crate) mod residence;
pub(crate) mod sharding;
pub mod shards;
pub mod state;
mod sums;
pub mod tensors;
pub(crate) mod tiles;
mod update;
mod value;
pub mod values;

pub use origin::Wide;

use crate::param::gradient::Gradient;
use crate::param::origin::ParamOrigin;
use crate::param::placement::Placement;
use crate::param::residence::{Kept, Residence};
use crate::param::sharding::ParamSharding;
use crate::param::state::{MASTER, StateTensor};
use crate::{Draw, Error, Result};
use comm::{Axes, Group};
use kernels::Kernels;
use shape::StateInfo;
use std::sync::Arc;
use tensor::{Category, Scalar, Store, Tensor};

/// This rank's local part of a parameter. Layers read it through a [weight](crate::handles::weight), which
/// may gather or load it, and add to its gradient through `accumulate`. No other code accesses it.
pub struct Param<D: Kernels> {
    name: Arc<str>,
    shape: [usize; 2],
    pub(crate) sharding: ParamSharding<D::Place>,
    device: D,
    store: Option<Store>, // of its state, if that is kept off the device
    value: Residence<D>,
    gradient: Gradient<D::Wide>,
    states: Vec<StateTensor<D::Wide>>, // of a narrow trained parameter its master first, then the optimizer's
    call_names: [Option<Arc<str>>; 2], // names of the calls for its gradient and its value
}

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
        let sharding = ParamSharding::new(at.mesh, &name, shape, placement, at.states.of(&name, shape))?;
        let numbers = || Ok::<_, Error>(sharding.placement.masked(at.values.of(&name, shape, draw)?));
        let store = at.store.filter(|_| at.learns && trained);
        let away = |here| if store.is_some() { Category::InFlight } else { here };
        let is_shard = sharding.keeps(|rests| rests.value);
        let layout = sharding.of_value(is_shard);
        let ([rows, cols], category) = if is_shard {
            (layout.shape, away(Category::Weights))
        } else {
            (sharding.room(), Category::Weights)
        };
        let narrow = numbers()?.map(|_, wide| D::Elem::narrow(wide));
        let mut value = Tensor::empty(at.device, category, rows, cols);
        let value = if sharding.is_elsewhere() {
            Residence::Outdated(value)
        } else {
            layout.set(&mut value, &narrow)?;
            if is_shard { Residence::Shard(Kept::new(store, value)) } else { Residence::Whole(value) }
        };
        let master = || {
            let (layout, info) = (sharding.of_value(true), StateInfo::like_value(MASTER));
            let [rows, cols] = layout.shape;
            let mut master = Tensor::empty(at.device.wide(), away(Category::Optimizer), rows, cols);
            layout.set(&mut master, &numbers()?)?;
            Ok::<_, Error>(StateTensor { info, layout, kept: Kept::new(store, master) })
        };
        let master = (at.learns && D::Elem::NARROW).then(master).transpose()?;
        Ok(Self {
            name,
            shape,
            sharding,
            device: at.device.clone(),
            store: store.cloned(),
            value,
            gradient: Gradient::NONE,
            states: master.into_iter().collect(),
            call_names: [None, None],
        })
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
    /// Returns the factor of weight decay: 1 for matrices, 0 for gains and biases.
    pub fn decays(&self) -> f64 {
        if self.shape[0] > 1 { 1.0 } else { 0.0 }
    }
    /// Returns its device.
    pub fn device(&self) -> &D {
        &self.device
    }
    /// True if products gather the value tile by tile.
    pub fn has_tiles(&self) -> bool {
        self.tiles().is_some()
    }
    /// Returns its tiles, if products gather the value tile by tile.
    pub(crate) fn tiles(&self) -> Option<&Arc<tiles::WeightTiles<D::Place>>> {
        self.sharding.tiles.as_ref()
    }
    /// The axes along which ranks have different elements that count.
    pub(crate) fn different(&self) -> Axes {
        self.sharding.different()
    }
    /// Declares that these ranks, of other stages, hold the whole parameter too: each of them has a partial
    /// sum of its gradient.
    pub fn tie_with(&mut self, group: &Group<D::Place>) {
        self.sharding.twins = Some(group.named(self.name.clone()));
    }
}

#[cfg(test)]
mod tests;
