//! Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
//!
//! The library behind the binary `equipart`: its [`commands`], their [views], the [command line](cli) and the
//! [drawings](draw). Every run is priced first, and refused if it does not fit in the free memory.
pub mod cli;
pub mod commands;
pub mod draw;
pub mod views;
