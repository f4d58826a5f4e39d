//! Ranks as processes, one rank each, joined by a carrier: TCP, or MPI.
//!
//! Each process holds the whole world, as in a run of threads: its own rank, which runs the program, and a
//! stand-in for every other rank. A stand-in is a thread that makes the calls its rank reports, in that
//! rank's order, on the same engines. So a rank that is late, has failed, disagrees or waits in a cycle is
//! found and named as among threads, in every process. Sums use the same code in the same order: the same
//! bits.
//!
//! A rank reports each call to the group's other ranks before it makes the call: a frame with the call, its
//! sentence, and the elements that it gives and the other's rank takes, or adds up for all. A stand-in takes
//! nothing: a process does only its own rank's part of a collective, and sends the sums of it to the others
//! (`shares.rs`). Frames of a rank are read in order, so a stand-in may wait in a call while later frames
//! wait in the connection. That wait ends: the rank that sent these frames has left that call, so all the
//! call's other ranks have reported it.
mod carriers;
mod check;
mod connection;
mod forms;
mod frame;
mod launch;
#[cfg(feature = "mpi")]
mod mpi;
mod order;
mod processes;
mod reporting_engines;
mod run_inputs;
mod secret;
mod shares;
mod stand_in;
mod tcp;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use frame::FailedEnd;
pub use launch::Launch;
pub(crate) use order::Order;
pub use processes::Processes;
pub(crate) use reporting_engines::ReportingEngines;
pub use run_inputs::{MeetingError, RunInputs};
pub use secret::Secret;
pub(crate) use shares::SumName;
pub(crate) use stand_in::StandIn;
