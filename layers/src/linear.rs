//! Linear layers, split by columns or by rows over the ranks of an axis.
pub mod column;
#[cfg(test)]
#[path = "linear/tests/gathered.rs"]
mod gathered;
#[cfg(test)]
#[path = "linear/tests/overlap.rs"]
mod overlap;
pub mod row;
#[cfg(test)]
#[path = "linear/tests/tiled.rs"]
mod tiled;
pub mod whole;
