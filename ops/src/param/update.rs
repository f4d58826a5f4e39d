//! Updates of a parameter: its state is allocated before the first one, loaded before each one if it is off
//! the device, and stored after it.
use crate::param::gradient::GradientStage;
use crate::param::part::{StateParts, UpdatePart, UpdateRange};
use crate::param::placement::Band;
use crate::param::residence::{self, Kept, Leaving};
use crate::param::state::{MASTER, StateTensor};
use crate::{Param, ParamValues, Result, Wide};
use kernels::Kernels;
use shape::{Like, StateInfo};
use tensor::{Category, Move, Tensor, ViewMut};

impl<D: Kernels> Param<D> {
    /// Allocates these tensors of an optimizer, all zero, unless they are there.
    ///
    /// # Errors
    /// If the parameter is cut inside a block.
    pub(crate) fn allocate_states(&mut self, infos: &[StateInfo]) -> Result<()> {
        let wide = self.device.wide();
        for &info in infos.iter().skip(self.states.len() - usize::from(self.has_master())) {
            let layout = self.sharding.of_state(info.like, &self.name)?;
            self.states.push(StateTensor::zero(info, layout, wide, self.store.as_ref()));
        }
        Ok(())
    }
    /// Allocates these tensors of an optimizer and sets them to values by global index.
    ///
    /// # Errors
    /// The errors of `values`, or as [`allocate_states`](Self::allocate_states).
    pub(crate) fn set_states<'a>(
        &mut self,
        infos: &[StateInfo],
        values: impl Fn(&Self, &StateInfo) -> Result<ParamValues<'a, Wide<D>>>,
    ) -> Result<()> {
        self.allocate_states(infos)?;
        let mut states = std::mem::take(&mut self.states);
        for StateTensor { info, layout, kept } in states.iter_mut().filter(|state| state.info.name != MASTER)
        {
            kept.load();
            let values = values(self, info)?;
            let values = if info.like == Like::Value { self.placement().masked(values) } else { values };
            layout.set(kept.here(), &values)?;
            drop(kept.begin_store().map(Move::wait));
        }
        self.states = states;
        Ok(())
    }
    /// Returns whether the first state is the master of a narrow value.
    pub(super) fn has_master(&self) -> bool {
        self.states.first().is_some_and(|state| state.info.name == MASTER)
    }
    /// Begins to load all that an update changes.
    pub(super) fn begin_load_state(&mut self) {
        if let Some(shard) = self.value.shard_mut() {
            shard.begin_load();
        }
        for state in &mut self.states {
            state.kept.begin_load();
        }
    }
    /// Loads all that an update changes.
    pub(super) fn load_state(&mut self) {
        self.begin_load_state();
        self.value.shard_mut().into_iter().for_each(Kept::load);
        self.states.iter_mut().for_each(|state| state.kept.load());
    }
    /// Begins to store all that an update has changed.
    pub(super) fn begin_store_state(&mut self) -> Leaving<D> {
        let value = self.value.shard_mut().and_then(Kept::begin_store);
        (value, self.states.iter_mut().filter_map(|state| state.kept.begin_store()).collect())
    }
    /// Runs an optimizer's kernels with the synced gradient on the parts kept at rest, some rows (or elements
    /// of a shard, whole blocks of them) at a time. Ends the step: the next contribution to the gradient
    /// overwrites it.
    ///
    /// If there is a `sum`, adds the gradient's squares to it as [`add_norm2`](Self::add_norm2) does. If no
    /// other rank holds the rows, this happens just before the kernels use them: memory is read once for
    /// both.
    pub(crate) fn update(
        &mut self,
        sum: Option<&mut Tensor<D::Wide>>,
        mut kernels: impl FnMut(UpdatePart<D>),
    ) {
        self.update_by(sum, None, |part, _| kernels(part));
    }
    /// Ends the step as [`update`](Self::update) does, but changes nothing.
    pub(crate) fn skip_update(&mut self) {
        self.gradient.stage = GradientStage::Last;
    }
    /// Runs an optimizer's kernels as [`update`](Self::update) does, and lets them write a direction, which
    /// is returned as it rests.
    pub(crate) fn direction(
        &mut self,
        sum: Option<&mut Tensor<D::Wide>>,
        mut kernels: impl FnMut(UpdatePart<D>, ViewMut<D::Wide>),
    ) -> Tensor<D::Wide> {
        let [rows, cols] = self.sharding.of_value(true).shape;
        let mut direction = Tensor::empty(self.device.wide(), Category::Buffers, rows, cols);
        self.update_by(sum, None, |part, at| kernels(part, at.of_mut(direction.view_mut())));
        direction
    }
    /// Runs an optimizer's kernels with a tensor at rest in place of the gradient. State off the device is
    /// loaded before, and stored after.
    pub(crate) fn apply(&mut self, changed: &Tensor<D::Wide>, mut kernels: impl FnMut(UpdatePart<D>)) {
        self.load_state();
        self.update_by(None, Some(changed), |part, _| kernels(part));
        residence::wait(self.begin_store_state());
    }
    /// Runs kernels with the gradient, or with the tensor `by` in its place; they also get the part's range.
    fn update_by(
        &mut self,
        mut sum: Option<&mut Tensor<D::Wide>>,
        by: Option<&Tensor<D::Wide>>,
        mut kernels: impl FnMut(UpdatePart<D>, UpdateRange),
    ) {
        if (!self.sharding.replicas.is_empty() || !self.sharding.counts())
            && let Some(sum) = sum.take()
        {
            self.add_norm2(sum);
        }
        self.leave_versions();
        let (has_master, is_shard) = (self.has_master(), self.value.shard().is_some());
        let (device, sharding, cols) = (&self.device, &self.sharding, self.sharding.cuts.local[1]);
        let gradient = by.cloned().or_else(|| self.gradient.at.at_rest()).expect("no synced gradient");
        if sharding.shards.is_some() {
            self.value.outdate();
        }
        let value = self.value.at_rest_mut().expect("a value at rest").view_mut();
        let mut value = match &sharding.shards {
            Some(shards) if !is_shard => value.take_rows(shards.group.rank(), 1),
            _ => value,
        };
        let (dim, grain) = if sharding.shards.is_some() { (1, sharding.grain) } else { (0, 1) };
        let [n, each] = [gradient.shape()[dim], gradient.shape()[1 - dim].max(1)];
        let together = (D::TOGETHER / each / grain).max(1).saturating_mul(grain);
        for start in (0..n).step_by(together) {
            let band = Band { dim, start, len: together.min(n - start) };
            let range = UpdateRange { band, cols, rows: dim == 1 && grain.is_multiple_of(cols) };
            let gradient = range.of(gradient.view());
            if let Some(sum) = &mut sum {
                device.wide().add_norm2(sum.view_mut(), gradient);
            }
            let (master, states) = self.states.split_at_mut(usize::from(has_master));
            let master = master.first_mut().map(|master| range.of_mut(master.kept.here().view_mut()));
            let states = StateParts { states, at: range };
            let value = range.of_mut(value.again());
            kernels(UpdatePart { device, value, master, states, gradient }, range);
        }
        self.gradient.stage = GradientStage::Last;
    }
}
