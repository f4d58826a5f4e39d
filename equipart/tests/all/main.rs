//! Every test of the crate as its users see it, in one program: the models are built for each number once.
mod bench;
mod bf16;
mod cannot_see;
mod cases;
mod child;
mod classify;
mod classify_refused;
mod collectives;
mod commands;
mod cuda;
mod diff;
mod drawings;
mod dumps;
mod embedded;
#[cfg(unix)]
mod endings;
mod goldens;
mod memory;
mod memory_limit;
mod models;
mod network;
mod order3;
mod processes;
mod profile;
mod runs;
mod schedule;
mod tokenizers;
