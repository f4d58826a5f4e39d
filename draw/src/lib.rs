//! Pictures: layouts, schedules and runs, as text in a terminal or as files of SVG; and traces as files for a
//! viewer of timelines.

// Ground: the parts of a picture, and tables of words.
pub mod picture;
pub mod table;

// Pictures, one file each, and the file of a trace.
pub mod bars;
pub mod blocks;
pub mod context;
pub mod curves;
pub mod front;
pub mod gates;
pub mod matrices;
pub mod mesh;
pub mod pipeline;
pub mod roofline;
pub mod schedule;
pub mod svg;
pub mod timeline;
pub mod trace;
pub mod tracks;

// Pictures of runs, made of these.
pub mod compared;
pub mod details;
pub mod epochs;
