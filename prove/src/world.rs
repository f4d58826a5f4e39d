//! World of a proof's ranks.
use comm::World;
use parallel::{Layout, Network, Result};
use std::time::Duration;

/// Creates the world of a proof over a network, with a time limit for proofs unless it has one.
///
/// # Errors
/// As [`Network::world`].
pub fn world(layout: &Layout, network: &Network) -> Result<World> {
    Network { timeout: network.timeout.or(Some(limit(layout))), ..network.clone() }.world(layout, "proof")
}

/// Time limit of a call in a proof. Ranks only compute: those that share a core wait for each other's work,
/// so it is one minute for each of them.
fn limit(layout: &Layout) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Duration::from_mins(layout.ranks().div_ceil(cores) as u64)
}
