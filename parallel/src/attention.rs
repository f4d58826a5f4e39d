//! Strategies of attention's core: how queries reach the keys of tokens that other context ranks have.
use crate::strategies::lists::builders;

builders! {
    ring::Ring,
    ulysses::Ulysses,
    gathered::Gathered,
}

#[cfg(test)]
mod tests;
