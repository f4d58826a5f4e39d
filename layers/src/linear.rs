//! Linear layers, split by columns or by rows over the ranks of an axis.
pub mod column;
#[cfg(test)]
mod overlap;
pub mod row;
#[cfg(test)]
mod tiled;
