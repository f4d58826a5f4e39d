//! Drawings: schedules and attention of context ranks in a terminal and as diagrams, timelines and curves of
//! runs.
pub mod bars;
pub(crate) mod blocks;
pub mod compared;
pub mod context;
pub mod curves;
pub mod details;
pub mod epochs;
pub mod front;
pub mod gates;
pub mod matrices;
pub mod mesh;
pub(crate) mod picture;
pub mod pipeline;
pub mod roofline;
pub mod schedule;
pub mod svg;
pub mod timeline;
pub mod trace;
pub mod tracks;
