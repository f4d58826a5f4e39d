//! Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
//!
//! The library behind the binary `equipart`: its [`commands`], their [views] and the [command line](cli).
//! Every run is priced first, and refused if it does not fit in the free memory.

// The terminal: results, notes and progress.
mod terminal;

// Views: ways of showing a run.
pub mod views;

// Flags of the commands, and what they load.
pub mod cli;

// Commands: flags, and the work that they ask for.
pub mod commands;
