//! Runs as a library: what a command does, without flags and without output. A run is told its model, layout,
//! data and settings, checks them, and calls back with what happens.
pub mod bench;
pub mod card;
pub mod collectives;
pub mod compare;
pub mod device;
pub mod eval;
pub mod event;
pub mod plan;
pub mod price;
pub mod prove;
pub mod roundoff;
pub mod schedule;
pub mod train;
pub mod words;
