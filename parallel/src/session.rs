//! The one place where the ranks of a layout start, each with the context to build its model in: as threads
//! with values, as one rank alone, or as a ghost. A ghost is a shape-only rank without its peers, for
//! pricing.
mod ghost;

use crate::{BuildContext, Layout, Result, Scheme};
use comm::{Mesh, SharedPlace, World};
pub use ghost::{RankClock, ghost, timed};
use kernels::Kernels;
use ops::{ValueSource, Wide};

/// Source of a rank's parameters; all ranks read it at once.
pub type Source<'a, D> = &'a (dyn ValueSource<Wide<D>> + Sync);

/// Runs a program on every rank of a world of the scheme's layout. Returns the ranks' results, by rank.
///
/// # Errors
/// The first failure of a rank.
pub fn run<'a, D: Kernels<Place: SharedPlace>, T: Send>(
    (scheme, world): (impl Into<Scheme<'a, D>>, &World),
    values: Source<D>,
    program: impl Fn(BuildContext<D>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let scheme = scheme.into();
    let place =
        |device: D, mesh| program(scheme.place(scheme.layout.place(&device, &mesh, values), |other| other));
    Ok(world.run(place)?)
}

/// Runs a program on one rank with the whole model, on this thread.
///
/// # Errors
/// The error of the program.
pub fn alone<D: Kernels + Default, T>(
    values: Source<D>,
    program: impl FnOnce(BuildContext<D>) -> Result<T>,
) -> Result<T> {
    program(Layout::UNSPLIT.place(&D::default(), &Mesh::alone(), values))
}
