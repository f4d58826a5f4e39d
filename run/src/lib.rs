//! Runs as a library: what a command does, without flags and without output. A run is told its model, layout,
//! data and settings, checks them, and calls back with what happens.

// Ground: devices, events that a run tells, numbers in words.
pub mod device;
pub mod event;
pub mod roundoff;
pub mod words;

// Runs of one kind each.
pub mod bench;
pub mod collectives;
pub mod devices;
pub mod diff;
pub mod eval;
pub mod generate;
pub mod machine;
pub mod schedule;
pub mod shard;
pub mod share;
pub mod sparse;
pub mod strategies;
pub mod train;

// Prices of a run.
pub mod price;

// Comparisons of priced runs, and the checks of a card that compare.
pub mod card;
pub mod compare;

// Proofs, and plans that are proven.
pub mod plan;
pub mod prove;
