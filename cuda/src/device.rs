//! A device of one dtype on a GPU.
use crate::gpu::Gpu;
use bytemuck::TransparentWrapper;
use std::marker::PhantomData;
use tensor::{Device, Scalar};

/// Device of one dtype on a GPU.
#[derive(Clone, TransparentWrapper)]
#[repr(transparent)]
#[transparent(Gpu)]
pub struct Cuda<S>(pub(crate) Gpu, PhantomData<S>);

impl<S> Default for Cuda<S> {
    /// Returns a device on the first card.
    fn default() -> Self {
        Self(Gpu::default(), PhantomData)
    }
}

impl<S: Scalar> Device for Cuda<S> {
    type Place = Gpu;
    type Elem = S;
    fn on(place: &Gpu) -> &Self {
        Self::wrap_ref(place)
    }
    fn place(&self) -> &Gpu {
        &self.0
    }
}
