//! A place and a kind of number.
use crate::meter::Meter;
use crate::place::Place;
use crate::profile::Profile;
use crate::scalar::Scalar;

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
    /// Fills the first `len` numbers with what shows when it is read before it is written.
    fn poison(buffer: &mut Buffer<Self>, len: usize);
    /// Sets number `i` to `f(i)`, for every `i < len` in order.
    fn write(&self, buffer: &mut Buffer<Self>, len: usize, f: &mut dyn FnMut(usize) -> Self::Elem);
    /// Appends the first `len` numbers to `values`; `false` on a device that has none.
    fn read(&self, buffer: &Buffer<Self>, len: usize, values: &mut Vec<Self::Elem>) -> bool;
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

/// A piece of a device's memory.
pub type Buffer<D> = <<D as Device>::Place as Place>::Buffer;
/// An address on a device.
pub type Ptr<D> = <<D as Device>::Place as Place>::Ptr;

/// An address so many of the device's numbers further on.
#[inline(always)]
pub(crate) fn offset<D: Device>(ptr: Ptr<D>, elements: usize) -> Ptr<D> {
    D::Place::offset(ptr, elements.wrapping_mul(size_of::<D::Elem>()))
}
