//! Optimizer state of a parameter, around an update: allocated, loaded before it and stored after it.
use crate::ops::filled;
use crate::param::kept::{Kept, Leaving};
use crate::{Param, Wide};
use kernels::Kernels;
use tensor::{Away, Category, Scalar};

impl<D: Kernels> Param<D> {
    /// Keeps a moment that is zero.
    fn zero_moment(&self) -> Kept<D::Wide> {
        let (wide, shape) = (self.device.wide(), self.sharding.at_rest().0);
        match &self.store {
            Some(store) => Kept::Away { away: Away::new(store, wide, shape), here: None },
            None => Kept::Here(filled(wide, Category::Optimizer, shape, Wide::<D>::ZERO)),
        }
    }
    /// Allocates `n` moments, all zero, if there are none yet.
    pub(crate) fn take_moments(&mut self, n: usize) {
        while self.moments.len() < n {
            self.moments.push(self.zero_moment());
        }
    }
    fn wide_state(&mut self) -> impl Iterator<Item = &mut Kept<D::Wide>> {
        self.master.iter_mut().chain(&mut self.moments)
    }
    /// Begins to load all that an update changes.
    pub(super) fn begin_load_state(&mut self) {
        if let Some(shard) = &mut self.value.shard {
            shard.begin_load();
        }
        for state in self.wide_state() {
            state.begin_load();
        }
    }
    /// Loads all that an update changes.
    pub(super) fn load_state(&mut self) {
        self.begin_load_state();
        self.value.shard.iter_mut().for_each(Kept::load);
        self.wide_state().for_each(Kept::load);
    }
    /// Begins to store all that an update has changed.
    pub(super) fn begin_store_state(&mut self) -> Leaving<D> {
        let value = self.value.shard.as_mut().and_then(Kept::begin_store);
        (value, self.wide_state().filter_map(Kept::begin_store).collect())
    }
}
