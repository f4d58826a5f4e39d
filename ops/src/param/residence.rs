//! Residence of a parameter's tensor on this rank, and its transitions.
//!
//! ```text
//!                       take, for a call
//! Whole ◄────────────────────────────────► InCall     a gradient is summed; it, or a shard of it, returns
//!   │ outdate: an update changed a part        ▲
//! Outdated ────────────────────────────────────┤      a value is gathered in place
//! Shard ───────────────────────────────────────┘      a value is gathered beside its shard
//!   ▲ rest: the use is over                    │
//! WholeOf ◄────────────────────────────────────┘
//! ```
//! A tensor that is kept at rest as a shard may be off the device between its uses; the whole never is.
use kernels::Kernels;
use std::mem::replace;
use tensor::{Away, Device, Move, Store, Tensor};

/// Elements of a tensor that are on this rank. A whole has room for all shards, one per row.
pub(crate) enum Residence<D: Device> {
    /// Nothing.
    Absent,
    /// The whole.
    Whole(Tensor<D>),
    /// The whole, in which only what this rank keeps at rest is up to date.
    Outdated(Tensor<D>),
    /// This rank's shard.
    Shard(Kept<D>),
    /// The whole, for a use, beside the shard.
    WholeOf(Tensor<D>, Kept<D>),
    /// The shard, if there is one; the whole is in a call.
    InCall(Option<Kept<D>>),
}

impl<D: Device> Residence<D> {
    /// Returns the whole, if it is here and up to date.
    pub(crate) fn whole(&self) -> Option<&Tensor<D>> {
        if let Self::Whole(whole) | Self::WholeOf(whole, _) = self { Some(whole) } else { None }
    }
    /// Returns the same tensor as [`whole`](Self::whole), for writing.
    pub(crate) fn whole_mut(&mut self) -> Option<&mut Tensor<D>> {
        if let Self::Whole(whole) | Self::WholeOf(whole, _) = self { Some(whole) } else { None }
    }
    /// Returns the shard.
    pub(crate) fn shard(&self) -> Option<&Kept<D>> {
        match self {
            Self::Shard(shard) | Self::WholeOf(_, shard) | Self::InCall(Some(shard)) => Some(shard),
            Self::Absent | Self::Whole(_) | Self::Outdated(_) | Self::InCall(None) => None,
        }
    }
    /// Returns the shard, for writing.
    pub(crate) fn shard_mut(&mut self) -> Option<&mut Kept<D>> {
        match self {
            Self::Shard(shard) | Self::WholeOf(_, shard) | Self::InCall(Some(shard)) => Some(shard),
            Self::Absent | Self::Whole(_) | Self::Outdated(_) | Self::InCall(None) => None,
        }
    }
    /// Returns what this rank keeps at rest, if anything: the shard, or the whole.
    pub(crate) fn at_rest(&self) -> Option<Tensor<D>> {
        match self {
            Self::Whole(whole) | Self::Outdated(whole) => Some(whole.clone()),
            _ => self.shard().map(Kept::read),
        }
    }
    /// Returns the same tensor as [`at_rest`](Self::at_rest), for writing.
    pub(crate) fn at_rest_mut(&mut self) -> Option<&mut Tensor<D>> {
        match self {
            Self::Whole(whole) | Self::Outdated(whole) => Some(whole),
            _ => self.shard_mut().map(Kept::here),
        }
    }
    /// Takes the whole for a call, or nothing if there is none.
    pub(crate) fn take(&mut self) -> Option<Tensor<D>> {
        let (whole, left) = match replace(self, Self::Absent) {
            Self::Whole(whole) | Self::Outdated(whole) => (Some(whole), Self::InCall(None)),
            Self::WholeOf(whole, shard) => (Some(whole), Self::InCall(Some(shard))),
            other => (None, other),
        };
        *self = left;
        whole
    }
    /// Takes the shard, if there is one and no whole beside it; then nothing is left.
    pub(crate) fn take_shard(&mut self) -> Option<Kept<D>> {
        match replace(self, Self::Absent) {
            Self::Shard(shard) => Some(shard),
            Self::InCall(shard) => shard,
            other => {
                *self = other;
                None
            }
        }
    }
    /// Puts a whole that is up to date beside the shard, or in place of a whole.
    ///
    /// # Panics
    /// If there is a whole beside the shard.
    pub(crate) fn give_back(&mut self, whole: Tensor<D>) {
        *self = match replace(self, Self::Absent) {
            Self::Shard(shard) | Self::InCall(Some(shard)) => Self::WholeOf(whole, shard),
            Self::WholeOf(..) => panic!("a call returned a tensor that was not in it"),
            Self::Absent | Self::Whole(_) | Self::Outdated(_) | Self::InCall(None) => Self::Whole(whole),
        };
    }
    /// Ends a use: frees the whole beside the shard, or the shard if the whole is to stay.
    pub(crate) fn rest(&mut self, keep_whole: bool) {
        *self = match replace(self, Self::Absent) {
            Self::WholeOf(whole, _) if keep_whole => Self::Whole(whole),
            Self::WholeOf(_, mut shard) | Self::Shard(mut shard) => {
                shard.free();
                Self::Shard(shard)
            }
            other => other,
        };
    }
    /// Declares that only what this rank keeps at rest is up to date.
    pub(crate) fn outdate(&mut self) {
        *self = match replace(self, Self::Absent) {
            Self::Whole(whole) => Self::Outdated(whole),
            Self::WholeOf(_, shard) => Self::Shard(shard),
            other => other,
        };
    }
}

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
