//! Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
//!
//! The library behind the binary `equipart`: what its [`commands`] do, the [command line](cli), and what is
//! [drawn](draw). What runs has been priced before, and is refused where the free memory cannot hold it.
pub mod cli;
pub mod commands;
pub mod device;
pub mod draw;
