//! Every test of the crate as its users see it, in one program: the models are built for each number once.
#![allow(clippy::too_many_lines)] // a test tells one story

mod altered;
mod answers;
mod bench;
mod between_ranks;
mod cannot_see;
mod cases;
mod child;
mod classify;
mod classify_cut;
mod classify_refused;
mod collectives;
mod commands;
mod compared;
mod context;
mod cuda;
mod diff;
mod drawn;

mod dumps;
mod embedded;
#[cfg(unix)]
mod endings;
mod goldens;
mod help;
mod kills;
mod largest_batch;
#[cfg(unix)]
mod limits;
mod loss_scale;
mod machine;
mod memory;
mod memory_limit;
mod models;
mod narrow;
mod network;
mod offload;
mod order3;
mod overwrites;
mod paths;
mod plan;
mod processes;
mod profile;
mod quoted;
mod requests;
#[path = "../../../docs/tests/all/rewrites.rs"]
mod rewrites;
mod runs;
mod schedule;
mod screens;
mod shard;
mod share;
#[path = "../../../cuda/src/twin/tests/skipped.rs"]
mod skipped;
mod sparse;
mod tables;
mod tokenizers;
mod trainer;
mod views;
