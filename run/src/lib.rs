//! Runs as a library: what a command does, without flags and without output. A run is told its model, layout,
//! data and settings, checks them, and calls back with what happens.
pub mod bench;
pub mod compare;
pub mod device;
pub mod event;
pub mod price;
pub mod roundoff;
pub mod train;
pub mod words;
