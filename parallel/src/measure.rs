//! Measurements of a run: time, memory, traffic.
use crate::Result;
use kernels::Kernels;
use layers::Builder;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tensor::{Phase, Place};

/// Measurements of one rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RankMeasurements {
    /// Wall-clock time of the work, without building the model.
    pub seconds: f64,
    /// Peak bytes while the model was built.
    pub load: usize,
    /// Peak bytes during the work.
    pub work: usize,
    /// Bytes that this rank would send during the work on a ring.
    pub wire: usize,
}

/// Peak bytes, one entry per rank.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeakBytes {
    /// While the model was built.
    pub load: Vec<usize>,
    /// During inference or training.
    pub inference: Vec<usize>,
    /// The larger of the two.
    pub total: Vec<usize>,
}

/// Runs `work` on a built model as one phase of this rank. All ranks start at the same moment.
///
/// # Errors
/// The error of `work`, or if a collective fails.
pub fn work<D: Kernels, T>(
    at: &Builder<D>,
    phase: Phase,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, RankMeasurements)> {
    let device = at.device;
    let mesh = at.mesh;
    mesh.barrier()?;
    device.meter().begin(phase);
    device.place().settle();
    let (before, start) = (mesh.ledger(), Instant::now());
    let result = work()?;
    device.place().settle();
    let seconds = start.elapsed().as_secs_f64();
    let wire = (mesh.ledger() - &before).wire_bytes();
    let work = device.meter().peaks(phase).total;
    Ok((result, RankMeasurements { seconds, load: device.meter().peaks(Phase::Load).total, work, wire }))
}

impl PeakBytes {
    /// Collects the peaks of all ranks.
    pub fn of(ranks: &[RankMeasurements]) -> Self {
        Self {
            load: ranks.iter().map(|t| t.load).collect(),
            inference: ranks.iter().map(|t| t.work).collect(),
            total: ranks.iter().map(|t| t.load.max(t.work)).collect(),
        }
    }
}

/// Time until the last rank finished, in seconds.
pub fn seconds(ranks: &[RankMeasurements]) -> f64 {
    ranks.iter().map(|t| t.seconds).fold(0.0, f64::max)
}

/// Bytes on the wire, summed over all ranks.
pub fn wire(ranks: &[RankMeasurements]) -> usize {
    ranks.iter().map(|t| t.wire).sum()
}

/// The fewest times that have a spread.
pub const FEWEST: usize = 3;

/// The median of some numbers, if there are any.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let number = numbers.len();
    (number > 0).then(|| f64::midpoint(numbers[(number - 1) / 2], numbers[number / 2]))
}

/// The median of some times, and half of the distance between their quartiles, as a fraction of it: of
/// [`FEWEST`] or more.
///
/// # Panics
/// If there are none.
pub fn median_and_spread(mut times: Vec<f64>) -> (f64, Option<f64>) {
    times.sort_by(f64::total_cmp);
    let last = times.len() - 1;
    let median = median(times.clone()).expect("some times");
    let between = times[last - last / 4] - times[last / 4];
    (median, (times.len() >= FEWEST).then_some(between / 2.0 / median))
}
