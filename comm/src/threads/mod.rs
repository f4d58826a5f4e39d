//! Ranks as threads of one process: collectives read and write the peers' memory directly.
//!
//! The rule that keeps this sound: a window is public from meeting to the closing arrival (`rendezvous.rs`), or while
//! its offer stands (`messages.rs`). A rank touches its peers' windows only while it is *inside*, and it goes inside
//! only if it then finds the group unbroken. A rank that leaves early, by error or panic, first breaks the group and
//! then waits until nobody is inside. Inside, nobody waits; so that ends.
#[cfg(test)]
mod blocks;
mod engine;
#[cfg(test)]
mod failures;
mod messages;
mod panics;
mod reduction;
mod rendezvous;
#[cfg(test)]
mod stress;
mod watch;
mod world;

pub use panics::caught;
pub use world::{RankError, World};
