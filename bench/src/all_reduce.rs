//! All-reduces of f32 between ranks, with all their guarantees.
use super::machine::{Bound, Probe};
use super::scale::Scale;
use crate::pass::least;
use comm::{Axis, Group, Reduce, SharedPlace};
use parallel::dtype::RunDevice;
use parallel::{Network, Result};
use std::time::Instant;
use tensor::{Category, Scalar, Tensor};

/// Bytes that all ranks of a burst reduce together, and the most calls of a burst.
const BURST: usize = 28 << 20;
const CALLS: usize = 3000;
/// Bursts of a turn, after one warm-up burst.
const BURSTS: usize = 7;

/// Seconds of a call in the best of several bursts; a burst has enough calls to be timed.
pub(super) fn seconds<D: RunDevice>(
    (network, ranks): (&Network, usize),
    bytes: usize,
    scale: &Scale,
) -> Result<f64> {
    let bytes = scale.of(bytes);
    let calls = (BURST / (bytes * ranks)).clamp(1, scale.of(CALLS));
    let world = network.world(&format!("tp={ranks}").parse()?, "all-reduces")?;
    let times = world.run(|device: D, mesh| {
        let group = mesh.group(Axis::Tp).named("burst");
        let mut x =
            Tensor::from_fn(&device, Category::Buffers, 1, bytes.div_ceil(size_of::<D::Elem>()), |_| {
                D::Elem::ZERO
            });
        let bursts = bursts(&group, device.place(), calls, || group.all_reduce(&mut x, Reduce::Sum))?;
        network.of_all(&mesh, bursts)
    })?;
    Ok(least(&times.concat()))
}

/// Seconds of a call in each of several bursts of `calls` calls; all ranks start a burst together.
pub(super) fn bursts<P: SharedPlace>(
    group: &Group<P>,
    place: &P,
    calls: usize,
    mut call: impl FnMut() -> comm::Result<()>,
) -> comm::Result<Vec<f64>> {
    let burst = |_| {
        group.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        place.settle();
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    (0..=BURSTS).map(burst).collect()
}

/// Lower bound of an all-reduce: each rank's window is read once and written once, by processors that do the
/// same for all ranks, and no rank finishes before it has heard from all others. The bound is the larger of
/// two times: the same processors rewrite this number of private bytes, or this number of threads synchronize
/// once.
pub(super) fn bound((ranks, cores): (usize, usize), bytes: usize, scale: &Scale) -> Bound {
    let each = scale.of(bytes) * ranks / cores;
    vec![(Probe::Rewrite { cores, bytes: each }, 1.0), (Probe::Meet { threads: ranks }, 1.0)]
}
