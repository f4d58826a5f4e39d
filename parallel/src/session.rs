//! The one place where the ranks of a layout start, and where each is given its place to build in: as threads with
//! numbers, as one rank alone, or as a ghost, a rank without numbers and without the others, which is priced.
mod ghost;

use crate::{At, Layout, Result, Scheme};
use comm::{Mesh, SharedPlace, World};
pub use ghost::ghost;
use kernels::Kernels;
use layers::{Values, Wide};

/// Where a rank's parameters come from; all ranks ask it at once.
pub type Source<'a, D> = &'a (dyn Values<Wide<D>> + Sync);

/// Runs a program on every rank of a world of the scheme's layout: what each gives, by rank.
///
/// # Errors
/// The failure of a rank that came first.
pub fn run<'a, D: Kernels<Place: SharedPlace>, T: Send>(
    (scheme, world): (impl Into<Scheme<'a, D>>, &World),
    values: Source<D>,
    program: impl Fn(At<D>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let scheme = scheme.into();
    let place =
        |device: D, mesh| program(scheme.place(scheme.layout.place(&device, &mesh, values), |other| other));
    Ok(world.run(place)?)
}

/// Runs a program on one rank that has everything, on this thread.
///
/// # Errors
/// What the program gives.
pub fn alone<D: Kernels + Default, T>(
    values: Source<D>,
    program: impl FnOnce(At<D>) -> Result<T>,
) -> Result<T> {
    program(Layout::UNSPLIT.place(&D::default(), &Mesh::alone(), values))
}
