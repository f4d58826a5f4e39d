//! Drawings: of schedules in a terminal and as a diagram, and of what ran as a timeline.
pub mod front;
mod picture;
pub mod pipeline;
pub mod schedule;
pub mod svg;
pub mod trace;
