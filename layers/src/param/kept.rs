//! State of a parameter between its uses: on the device, or off it. A parameter's shard of the value, its
//! master and its moments may be off the device; its gradient never is.
use kernels::Kernels;
use tensor::{Away, Device, Move, Store, Tensor};

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
    pub(crate) fn begin_store(&mut self) -> Option<Move<D>> {
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
pub(crate) type Leaving<D> = (Option<Move<D>>, Vec<Move<<D as Kernels>::Wide>>);

/// Waits for state that is on its way off the device, and frees its copies.
pub(crate) fn wait<D: Kernels>((value, wide): Leaving<D>) {
    drop(value.map(Move::wait));
    for state in wide {
        drop(state.wait());
    }
}
