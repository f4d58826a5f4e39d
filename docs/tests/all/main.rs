//! The house, the book and the museum are in order.
mod arrows;
mod book;
mod museum;
mod names;
mod order;
mod rooms;
mod tree;
mod two_commands;
