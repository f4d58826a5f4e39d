//! State of a parameter between its uses: on the device, or off it. A parameter's value at rest, its master and
//! its moments may be off the device; its gradient never is.
use crate::ops::filled;
use crate::{Param, Wide};
use kernels::Kernels;
use tensor::{Away, Category, Device, Moving, Scalar, Store, Tensor};

/// A tensor that is kept on the device, or off it between its uses.
pub(crate) enum Kept<D: Device> {
    Here(Tensor<D>),
    Away { away: Away<D>, here: Option<Tensor<D>> },
}

impl<D: Device> Kept<D> {
    /// Keeps a tensor, off the device if there is a store.
    pub(crate) fn new(store: Option<&Store>, tensor: Tensor<D>) -> Self {
        let Some(store) = store else { return Self::Here(tensor) };
        let mut away = Away::new(store, tensor.device(), tensor.shape());
        drop(away.begin_store(tensor).wait());
        Self::Away { away, here: None }
    }
    /// The tensor for writing.
    ///
    /// # Panics
    /// If it is off the device.
    pub(crate) fn here(&mut self) -> &mut Tensor<D> {
        let (Self::Here(tensor) | Self::Away { here: Some(tensor), .. }) = self else {
            panic!("offloaded state was not loaded")
        };
        tensor
    }
    /// Returns the tensor, or a copy if it is off the device.
    pub(crate) fn read(&self) -> Tensor<D> {
        match self {
            Self::Here(tensor) | Self::Away { here: Some(tensor), .. } => tensor.clone(),
            Self::Away { away, here: None } => away.read(),
        }
    }
    /// Begins to load the tensor; returns false if it is on the device.
    pub(crate) fn begin_load(&mut self) -> bool {
        let Self::Away { away, here: None } = self else { return false };
        away.begin_load();
        true
    }
    pub(crate) fn load(&mut self) {
        if let Self::Away { away, here } = self {
            let _ = here.get_or_insert_with(|| away.load());
        }
    }
    /// Begins to store the tensor; `None` if it stays here, or is off the device.
    pub(crate) fn begin_store(&mut self) -> Option<Moving<D>> {
        let Self::Away { away, here } = self else { return None };
        here.take().map(|tensor| away.begin_store(tensor))
    }
    /// Frees the copy on the device, which has not changed.
    pub(crate) fn free(&mut self) {
        if let Self::Away { here, .. } = self {
            *here = None;
        }
    }
}

/// State that is on its way off the device.
pub(crate) type Leaving<D> = (Option<Moving<D>>, Vec<Moving<<D as Kernels>::Wide>>);

impl<D: Kernels> Param<D> {
    /// Keeps a moment that is zero.
    pub(super) fn zero_moment(&self) -> Kept<D::Wide> {
        let (wide, shape) = (self.device.wide(), self.sharding.at_rest().0);
        match &self.store {
            Some(store) => Kept::Away { away: Away::new(store, wide, shape), here: None },
            None => Kept::Here(filled(wide, Category::Optimizer, shape, Wide::<D>::ZERO)),
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

/// Waits for state that is on its way off the device, and frees its copies.
pub(crate) fn wait<D: Kernels>((value, wide): Leaving<D>) {
    drop(value.map(Moving::wait));
    wide.into_iter().for_each(|state| drop(state.wait()));
}
