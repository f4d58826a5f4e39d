//! What a run of ranks took: time, memory, traffic.
use crate::Result;
use kernels::Kernels;
use layers::Builder;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use tensor::{Phase, Place};

/// What one rank took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Taken {
    /// Wall-clock time of the work, without building the model.
    pub seconds: f64,
    /// Peak bytes while the model was built.
    pub load: usize,
    /// Peak bytes while it worked.
    pub work: usize,
    /// Bytes this rank would send on a ring while it worked.
    pub wire: usize,
}

/// Peak bytes, one entry a rank.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeakBytes {
    /// While the model was built.
    pub load: Vec<usize>,
    /// While it inferred, or trained.
    pub inference: Vec<usize>,
    /// The larger of the two.
    pub total: Vec<usize>,
}

/// Runs `work` on a built model as one phase of the rank at this place, all ranks from the same moment.
///
/// # Errors
/// What `work` gives, and if ranks do not meet.
pub fn work<D: Kernels, T>(
    at: &Builder<D>,
    phase: Phase,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Taken)> {
    let (device, mesh) = (at.device, at.mesh);
    mesh.barrier()?;
    device.meter().begin(phase);
    device.place().settle();
    let (before, start) = (mesh.ledger(), Instant::now());
    let result = work()?;
    device.place().settle();
    let seconds = start.elapsed().as_secs_f64();
    let wire = (mesh.ledger() - &before).wire_bytes();
    let (load, work) = (device.meter().peaks(Phase::Load).total, device.meter().peaks(phase).total);
    Ok((result, Taken { seconds, load, work, wire }))
}

impl PeakBytes {
    /// Of all ranks.
    pub fn of(ranks: &[Taken]) -> Self {
        Self {
            load: ranks.iter().map(|t| t.load).collect(),
            inference: ranks.iter().map(|t| t.work).collect(),
            total: ranks.iter().map(|t| t.load.max(t.work)).collect(),
        }
    }
}

/// The time until the last rank was done.
pub fn seconds(ranks: &[Taken]) -> f64 {
    ranks.iter().map(|t| t.seconds).fold(0.0, f64::max)
}

/// Bytes on the wire of all ranks.
pub fn wire(ranks: &[Taken]) -> usize {
    ranks.iter().map(|t| t.wire).sum()
}
