//! Collectives as data: rounds of messages between ranks, their time over links, and the all-reduce
//! algorithms. Nothing here sends: `comm` makes real calls, and counts them as the cheapest of these does.

// Links, and rounds of messages over them.
mod link;
mod schedule;

// All-reduce algorithms.
mod all_reduce;

pub use all_reduce::{Algorithm, NoSchedule, bound};
pub use link::{Link, LinkError};
pub use schedule::{Arrival, CommRound, CommSchedule, Transfer};
