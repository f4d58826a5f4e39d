//! Matrices and weights of which a rank holds a part.
pub mod split;
pub mod stream;
pub mod weight;
