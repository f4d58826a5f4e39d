//! Linear layers, split by columns or by rows over the ranks of an axis.
pub mod column;
pub mod row;
#[cfg(test)]
mod tiled;
