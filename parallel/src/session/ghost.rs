//! A rank without numbers and without the other ranks, which is priced.
use crate::{At, Result, Scheme};
use kernels::{Kernels, Meta};
use layers::Random;
use tensor::Device;
use tensor::count::Uncountable;

/// Runs a program on one rank of a scheme's layout, without numbers, on this thread; the rank may hold `limit` bytes, if one is
/// given.
///
/// # Errors
/// What the program gives, and if 64 bits do not count what the rank holds.
pub fn ghost<'a, D: Kernels, T>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, limit): (usize, Option<usize>),
    program: impl FnOnce(At<Meta<D::Elem>>) -> Result<T>,
) -> Result<T> {
    let scheme = scheme.into();
    let (device, mesh) = (kernels::meta_of::<D>(), scheme.layout.ghost(rank)?);
    limit.inspect(|&bytes| device.meter().limit(bytes));
    let at = scheme.layout.place(&device, &mesh, &Random { seed: 0 });
    Uncountable::caught(|| program(scheme.place(at, |other| other)))?
}
