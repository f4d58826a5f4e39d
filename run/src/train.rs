//! Training on text, on given ids or on pictures, with checkpoints.
pub mod amount;
pub mod asked;
mod check;
pub mod constants;
mod copies;
pub mod data;
mod dumped;
pub mod epochs;
pub mod evaluations;
mod largest;
pub mod log;
mod rank;
mod records;
mod run;
pub mod schedule;
pub mod settings;
pub mod state;
pub mod stragglers;

pub use check::NO_CHECKPOINTS;
pub use records::of_steps;
pub use run::{Finished, RunFacts, StepLine, TrainRun};
