//! The cost of the priced program, and the price of a rank that is made from it.
use comm::Ledger;
use parallel::dtype::DtypeName;
use serde::Serialize;
use std::collections::BTreeMap;
use tensor::Peaks;

/// Cost of the program that is priced.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Peaks over all phases.
    pub peaks: Peaks,
    /// Operations of the last step.
    pub flops: u64,
    /// Traffic of the last step.
    pub traffic: Ledger,
    /// Bytes of offloaded state, and bytes that the last step moves between it and the device.
    pub offloaded: (usize, u64),
}

/// The price of the training step of a rank, and of all ranks like it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The layout.
    pub layout: String,
    /// The dtype.
    pub number: DtypeName,
    /// The rank, the first of those that are alike.
    pub rank: usize,
    /// Number of ranks that are alike.
    pub ranks: usize,
    /// Microbatches of the step.
    pub microbatches: usize,
    /// Number of parameters of the whole model.
    pub parameters: usize,
    /// Peak bytes by category, each at its own time, and of all together (`total`).
    pub peak_bytes: BTreeMap<&'static str, usize>,
    /// Bytes of offloaded state, off the device; no category has them.
    pub away_bytes: usize,
    /// Bytes that a step moves between the device and the offloaded state, in both directions.
    pub moved_bytes: u64,
    /// Floating point operations of a step: products and attention.
    pub flops: u64,
    /// Bytes this rank sends in a step, as if the ranks of each axis formed a ring.
    pub traffic_bytes: usize,
    /// Its traffic in a step, by axis and operation.
    pub traffic: Vec<RankTraffic>,
}

/// Traffic of one rank along one axis in one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankTraffic {
    /// The axis.
    pub axis: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// Number of calls.
    pub calls: usize,
    /// Bytes of the tensors passed.
    pub payload_bytes: usize,
    /// Bytes that this rank sends.
    pub wire_bytes: usize,
}
