//! Drawings: schedules and attention of context ranks in a terminal and as diagrams, timelines and curves of
//! runs.
pub(crate) mod blocks;
pub mod context;
pub mod curves;
pub mod front;
mod picture;
pub mod pipeline;
pub mod schedule;
pub mod svg;
pub mod trace;
