//! The time of a layout on a machine, and the search for the best layout.
//!
//! | files | contents |
//! |---|---|
//! | `machine.rs`, `machines/*.json` | machines as data: speeds of kernels, memory and links, with sources |
//! | `clock.rs` | the clock of a shape-only rank: the time of its kernels and calls |
//! | `step.rs` | the time of a step: the clocks of all stages, combined by the simulation of the schedule |
//! | `space.rs`, `candidate.rs`, `search.rs`, `weighed.rs` | layouts to try; the best ones first |
//! | `block.rs`, `found.rs`, `sparse.rs` | the costs of a block, of a graph's operators, of a sparse layer |
//! | `bound.rs`, `hold.rs` | lower bounds of a layout's time and of its memory |
//! | `cores.rs`, `kept.rs`, `watch.rs` | work for all cores; prices that a search keeps; its progress |
//! | `generation.rs` | the time of generating texts, and the search for its best layout |
//! | `morphing.rs` | the best layout of as many devices as are left |
//! | `partition.rs`, `share.rs` | by measured times: `PipeDream`'s stages, a model's share of a device |
//! | `advice.rs` | the usual decision trees, with this job's figures |

// Machines as data, layouts to try, work for all cores, and equations of measured times.
mod cores;
pub mod machine;
pub mod partition;
pub mod share;
pub mod space;
pub mod sparse;

// The time of a step: the clocks of all stages, combined.
pub mod clock;
pub mod found;
pub mod spans;
pub mod step;

// Costs of a block, what a layout holds, and bounds of both.
pub mod block;
pub mod bound;
mod candidate;
pub mod hold;
mod kept;

// The search, its results and its events.
pub mod search;
pub mod watch;
pub mod weighed;

// Plans made by searches: of other jobs, and in words.
pub mod advice;
pub mod generation;
pub mod morphing;

pub use clock::{Lap, Part, StepClock};
pub use machine::Machine;
