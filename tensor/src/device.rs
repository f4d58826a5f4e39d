//! A place and a dtype.
use crate::{Meter, Place, Profile, Scalar};
use bytemuck::TransparentWrapper;
use std::marker::PhantomData;

/// A place and a dtype. A device holds only its place, so devices of different dtypes on one place share its
/// memory, meter and profile.
pub trait Device: Clone + Send + Sync + 'static {
    /// Place of the memory.
    type Place: Place;
    /// Dtype of the elements. On the meta device it only determines how many bytes an element takes.
    type Elem: Scalar;

    /// Returns the device of this dtype on a place.
    fn on(place: &Self::Place) -> &Self;
    /// Returns the place.
    fn place(&self) -> &Self::Place;
    /// Meter of the memory that this rank holds and of the work that it does.
    fn meter(&self) -> &Meter {
        self.place().meter()
    }
    /// Profile of this rank's time; `None` on devices that compute nothing.
    #[inline]
    fn profile(&self) -> Option<&Profile> {
        self.place().profile()
    }
}

/// Place `P` with elements of dtype `T`: on the host ([`Cpu`](crate::Cpu)) or on the meta device, for
/// example.
#[derive(Clone, TransparentWrapper)]
#[repr(transparent)]
#[transparent(P)]
pub struct On<P, T>(P, PhantomData<T>);

impl<P: Default, T> Default for On<P, T> {
    /// Creates a device on a new place.
    fn default() -> Self {
        Self(P::default(), PhantomData)
    }
}

impl<P: Place, S: Scalar> Device for On<P, S> {
    type Place = P;
    type Elem = S;
    #[inline(always)]
    fn on(place: &P) -> &Self {
        Self::wrap_ref(place)
    }
    #[inline(always)]
    fn place(&self) -> &P {
        &self.0
    }
}

/// Piece of a device's memory.
pub type Buffer<D> = <<D as Device>::Place as Place>::Buffer;
/// Address on a device.
pub type Ptr<D> = <<D as Device>::Place as Place>::Ptr;

/// Address `elements` elements after `ptr`.
#[inline(always)]
pub(crate) fn offset<D: Device>(ptr: Ptr<D>, elements: usize) -> Ptr<D> {
    D::Place::offset(ptr, elements.wrapping_mul(size_of::<D::Elem>()))
}
