//! A shape-only rank without its peers, for pricing.
use crate::{BuildContext, Result, Scheme};
use comm::CallClock;
use kernels::{Kernels, MetaOf};
use ops::RandomValues;
use std::sync::Arc;
use tensor::count::Overflow;
use tensor::{Clock, Device};

/// Clock of a shape-only rank, of kernels and calls: two references to one clock.
pub type RankClock = (Arc<dyn Clock>, Arc<dyn CallClock>);

/// Runs a program on one rank of a scheme's layout, on the meta device and on this thread. `limit` is the
/// number of bytes that the rank may hold, if it is limited.
///
/// # Errors
/// The error of the program, or if the bytes that the rank holds overflow 64 bits.
pub fn ghost<'a, D: Kernels, T>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, limit): (usize, Option<usize>),
    program: impl FnOnce(BuildContext<MetaOf<D>>) -> Result<T>,
) -> Result<T> {
    timed(scheme, (rank, limit), None, program)
}

/// Does the same as [`ghost`], and lets the clock count all kernels and calls.
///
/// # Errors
/// As [`ghost`].
pub fn timed<'a, D: Kernels, T>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, limit): (usize, Option<usize>),
    clock: Option<RankClock>,
    program: impl FnOnce(BuildContext<MetaOf<D>>) -> Result<T>,
) -> Result<T> {
    let scheme = scheme.into();
    let (kernels, calls) = clock.unzip();
    let device = kernels::timed_meta_of::<D>(kernels);
    let mesh = scheme.layout.ghost(rank)?;
    let mesh = calls.into_iter().fold(mesh, comm::Mesh::timed);
    limit.inspect(|&bytes| device.meter().limit(bytes));
    let context = scheme.layout.place(&device, &mesh, &RandomValues { seed: 0 });
    Overflow::caught(|| program(scheme.place(context, |other| other)))?
}
