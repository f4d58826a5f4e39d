//! How attention's core meets the keys of tokens that other context ranks have.
use crate::strategies::lists::builders;

builders! {
    gathered::Gathered,
}
