//! The one place where the ranks of a layout start, and where each is given its place to build in: as threads with
//! numbers, as one rank alone, or as a ghost, a rank without numbers and without the others, which is priced.
use crate::{At, Layout, Result, Scheme};
use comm::{Mesh, SharedPlace, World};
use kernels::{Kernels, Meta};
use layers::{Random, Values, Wide};
use tensor::Device;
use tensor::count::Uncountable;

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
    let place = |device: D, mesh| program(scheme.place(scheme.layout.place(&device, &mesh, values)));
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

/// Runs a program on one rank of a scheme's layout, without numbers, on this thread; the rank may hold `limit` bytes, if one is
/// given.
///
/// # Errors
/// What the program gives, and if 64 bits do not count what the rank holds.
pub fn ghost<'a, D: Kernels, T>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, limit): (usize, Option<usize>),
    program: impl FnOnce(At<Meta<D>>) -> Result<T>,
) -> Result<T> {
    let (mut program, mut made) = (Some(program), None);
    erased(scheme.into(), (rank, limit), &mut |at| {
        made = Some(program.take().expect("it runs once")(at)?);
        Ok(())
    })?;
    Ok(made.expect("it ran"))
}

/// [`ghost`] of one type of program, so that it is compiled once for each device.
fn erased<D: Kernels>(
    scheme: Scheme<'_, D>,
    (rank, limit): (usize, Option<usize>),
    program: &mut dyn FnMut(At<Meta<D>>) -> Result<()>,
) -> Result<()> {
    let (device, mesh) = (Meta::default(), scheme.layout.ghost(rank)?);
    limit.inspect(|&bytes| device.meter().limit(bytes));
    Uncountable::caught(|| program(scheme.ghost(scheme.layout.place(&device, &mesh, &Random { seed: 0 }))))?
}
