//! Every proof of the crate as its users see it, in one program: the models are built for each number once.
mod cases;
mod divergence;
mod layouts;
mod metamorphic;
mod mutants;
mod small_primes;
mod strategies;
