//! A store of state off the device, as a strategy.
use layers::StrategyInfo;

/// A store of state off the device.
#[derive(Debug)]
pub struct Offload {
    /// Its description.
    pub about: StrategyInfo,
    /// True if state lies in the host's pinned memory, false if in a file.
    pub pinned: bool,
}
