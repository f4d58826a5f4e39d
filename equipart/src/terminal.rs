//! The terminal: results on standard output, notes and progress on standard error.
pub(crate) mod out;
