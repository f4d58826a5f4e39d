//! Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
//!
//! The library behind the binary `equipart`: its [`commands`], their [views], the [command line](cli) and the
//! [drawings](draw). Every run is priced first, and refused if it does not fit in the free memory.

// The terminal: results, notes and progress.
mod terminal;

// Pictures: as text, or as files of SVG.
pub mod draw;

// Views: ways of showing a run.
pub mod views;

// Flags of the commands, and what they load.
pub mod cli;

// Commands: flags, and the work that they ask for.
pub mod commands;
