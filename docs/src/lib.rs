//! The course. Each chapter is a file beside this one, an entry of `SUMMARY.md` and one item below, so that its
//! Rust blocks run as doctests; `tests/book.rs` checks that none of the three is missing.

#[cfg(doctest)]
#[doc = include_str!("by-hand.md")]
mod by_hand {}
