//! All proofs of the crate through its public API, in one test binary: the models are compiled once for each
//! dtype.
mod cases;
mod checkpoints;
mod context;
mod divergence;
mod graphs;
mod layouts;
mod metamorphic;
mod mutants;
mod processes;
mod small_primes;
mod strategies;
mod tables;
