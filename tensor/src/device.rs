//! A place and a kind of number.
use crate::{Meter, Place, Profile, Scalar};
use bytemuck::TransparentWrapper;
use std::marker::PhantomData;

/// A place and a kind of number. It holds nothing but the place, so that devices of different numbers on one place share
/// its memory, meter and profile.
pub trait Device: Clone + Send + Sync + 'static {
    /// Where memory lies.
    type Place: Place;
    /// The kind of number. Where there is no memory it only says how many bytes one takes.
    type Elem: Scalar;

    /// This kind of number on a place.
    fn on(place: &Self::Place) -> &Self;
    /// Where memory lies.
    fn place(&self) -> &Self::Place;
    /// What this rank holds and computes.
    fn meter(&self) -> &Meter {
        self.place().meter()
    }
    /// Where its time goes; none where nothing is computed.
    #[inline]
    fn profile(&self) -> Option<&Profile> {
        self.place().profile()
    }
}

/// A place and numbers of the kind `T` on it: on the host ([`Cpu`](crate::Cpu)), or nowhere.
#[derive(Clone, TransparentWrapper)]
#[repr(transparent)]
#[transparent(P)]
pub struct On<P, T>(P, PhantomData<T>);

impl<P: Default, T> Default for On<P, T> {
    /// A rank's share of its own.
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

/// A piece of a device's memory.
pub type Buffer<D> = <<D as Device>::Place as Place>::Buffer;
/// An address on a device.
pub type Ptr<D> = <<D as Device>::Place as Place>::Ptr;

/// An address so many of the device's numbers further on.
#[inline(always)]
pub(crate) fn offset<D: Device>(ptr: Ptr<D>, elements: usize) -> Ptr<D> {
    D::Place::offset(ptr, elements.wrapping_mul(size_of::<D::Elem>()))
}
