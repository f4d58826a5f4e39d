//! A shape-only rank without its peers, for pricing.
use crate::{BuildContext, Result, Scheme};
use kernels::{Kernels, Meta};
use layers::RandomValues;
use tensor::Device;
use tensor::count::Overflow;

/// Runs a program on one rank of a scheme's layout, on the meta device and on this thread. `limit` is the
/// number of bytes that the rank may hold, if it is limited.
///
/// # Errors
/// The error of the program, or if the bytes that the rank holds overflow 64 bits.
pub fn ghost<'a, D: Kernels, T>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, limit): (usize, Option<usize>),
    program: impl FnOnce(BuildContext<Meta<D::Elem>>) -> Result<T>,
) -> Result<T> {
    let scheme = scheme.into();
    let (device, mesh) = (kernels::meta_of::<D>(), scheme.layout.ghost(rank)?);
    limit.inspect(|&bytes| device.meter().limit(bytes));
    let at = scheme.layout.place(&device, &mesh, &RandomValues { seed: 0 });
    Overflow::caught(|| program(scheme.place(at, |other| other)))?
}
