//! Ranks as threads of one process: collectives read and write the peers' memory directly.
//!
//! The rule that keeps this sound: a window is public from meeting to the closing arrival (`rendezvous.rs`),
//! or while its post stands (`messages.rs`). A rank touches its peers' windows only while it is *inside*: it
//! goes inside first, and leaves again if it then finds the group broken. A rank that leaves early, by error
//! or panic, first breaks the group and then waits until no rank is inside. No rank waits while it is inside,
//! so this wait ends. Posts are withdrawn under a lock. `models.rs` tests this in all orders that the memory
//! model allows, `tests.rs` tests everything that ranks may do.
mod arrival;
mod engine;
pub(crate) mod engines;
mod late;
mod messages;
#[cfg(all(test, loom))]
#[path = "tests/models/mod.rs"]
mod models;
mod rendezvous;
mod slow;
mod started;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
pub(crate) mod watch;
