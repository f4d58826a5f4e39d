//! All-reduces of f32 between thread ranks, with all their promises.
use super::machine::{Bound, Probe, least};
use super::scale::Scale;
use comm::{Axis, Group, Reduce, SharedPlace, World};
use parallel::Result;
use parallel::number::Runs;
use std::time::Instant;
use tensor::{Category, Scalar, Tensor};

/// Bytes that the ranks of a burst sum up together, and calls of a burst at most.
const BURST: usize = 28 << 20;
const CALLS: usize = 3000;
/// Bursts of a turn, after one to warm up.
const BURSTS: usize = 7;

/// The time of a call within the best of several bursts, each of as many calls as make a time that can be measured.
pub(super) fn seconds<D: Runs>(ranks: usize, bytes: usize, scale: &Scale) -> Result<f64> {
    let bytes = scale.of(bytes);
    let calls = (BURST / (bytes * ranks)).clamp(1, scale.of(CALLS));
    let world = World::threads(&[(Axis::Tp, ranks)])?;
    let times = world.run(|device: D, mesh| {
        let group = mesh.group(Axis::Tp).named("burst");
        let mut x =
            Tensor::from_fn(&device, Category::Buffers, 1, bytes.div_ceil(size_of::<D::Elem>()), |_| {
                D::Elem::ZERO
            });
        bursts(&group, device.place(), calls, || group.all_reduce(&mut x, Reduce::Sum))
    })?;
    Ok(least(&times))
}

/// The time of a call in each of several bursts of so many, which all ranks begin together.
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

/// However it is done, each rank's window is read once and written once, by processors that have to do the same for all
/// ranks; and no rank is done before it has heard from all others. The longer of the two bounds the whole: the first is
/// what the same processors take for as many bytes that nobody else touches, the second a bare meeting of as many threads.
pub(super) fn bound((ranks, cores): (usize, usize), bytes: usize, scale: &Scale) -> Bound {
    let each = scale.of(bytes) * ranks / cores;
    vec![(Probe::Rewrite { cores, bytes: each }, 1.0), (Probe::Meet { threads: ranks }, 1.0)]
}
