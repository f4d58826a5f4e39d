//! Checks of the repository, the book and the museum.
mod arrows;
mod book;
mod circles;
mod counts;
mod exercises;
mod floors;
mod museum;
mod names;
mod order;
mod reading;
mod rewrites;
mod tree;
mod two_commands;
mod words;
