//! State of a parameter that only updates use: the master of a narrow value, and the optimizer's tensors.
//! Each is kept at rest as its [`Like`](shape::Like) says, and may be off the device between updates.
use crate::filled;
use crate::param::residence::Kept;
use crate::param::sharding::TensorLayout;
use kernels::Kernels;
use shape::StateInfo;
use tensor::{Away, Category, Device, Scalar, Store};

/// Name of a value: in files the one before it was rounded to a narrow dtype.
pub const VALUE: &str = "value";
/// Name of a narrow value's master: the value before it was rounded.
pub const MASTER: &str = "master";

/// A tensor of state.
pub(crate) struct StateTensor<D: Device> {
    pub(crate) info: StateInfo,
    pub(crate) layout: TensorLayout,
    pub(crate) kept: Kept<D>,
}

impl<D: Kernels> StateTensor<D> {
    /// Allocates a tensor that is zero, off the device if there is a store.
    pub(crate) fn zero(info: StateInfo, layout: TensorLayout, device: &D, store: Option<&Store>) -> Self {
        let kept = match store {
            Some(store) => Kept::Away { away: Away::new(store, device, layout.shape), here: None },
            None => Kept::Here(filled(device, Category::Optimizer, layout.shape, D::Elem::ZERO)),
        };
        Self { info, layout, kept }
    }
}
