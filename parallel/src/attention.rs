//! Strategies of attention's core: how queries reach the keys of tokens that other context ranks have.
use crate::lists::builders;

builders! {
    ring::RingAttention,
    ulysses::Ulysses,
    gathered::Gathered,
}

#[cfg(test)]
mod tests;
