//! Errors of building or running a model.
use crate::division::DivisionRule;
use comm::{Axis, CommError};
use tensor::IdsError;

/// Reason why a layer could not be built, or a call could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A token id outside the vocabulary.
    #[error(transparent)]
    Ids(#[from] IdsError),
    /// A layer that strategies cannot build: two build it, none builds it, or one builds an embedding whose
    /// table the head shares.
    #[error("{0}")]
    Strategies(String),
    /// An impossible request, in one sentence: a bad size, ranks that do not divide it, parts of two axes,
    /// missing values.
    #[error("{0}")]
    Cannot(String),
}

impl Error {
    /// Says that `what` has the value `seen`, and which value is wanted.
    pub fn size(what: impl Into<String>, seen: impl ToString, wanted: impl Into<String>) -> Self {
        Self::Cannot(format!("{} is {}; it must be {}", what.into(), seen.to_string(), wanted.into()))
    }
    /// Says that the ranks of an axis do not divide `size` items of `what`, such as heads or columns of a
    /// parameter, and lists the numbers of ranks that do.
    pub(crate) fn fit(what: &str, size: usize, (axis, ranks): (Axis, usize)) -> Self {
        let fits = numbers(size.min(64), |n| size.is_multiple_of(n));
        Self::Cannot(format!("{axis}={ranks} does not divide the {size} {what}; {axis} can be {fits}"))
    }
    /// Says that the ranks do not divide the query heads, or can neither divide nor replicate the KV heads,
    /// and lists the numbers of ranks that fit.
    pub fn heads(name: &str, [queries, keys]: [usize; 2], (axis, ranks): (Axis, usize)) -> Self {
        let heads = format!("{queries} query heads and {keys} KV heads of {name}");
        let fits = numbers(queries.min(1024), |n| DivisionRule::heads(queries, keys, n));
        Self::Cannot(format!("{axis}={ranks} does not fit the {heads}; {axis} can be {fits}"))
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Lists the numbers of ranks up to `most` that fit.
fn numbers(most: usize, fits: impl Fn(usize) -> bool) -> String {
    let numbers: Vec<_> = (1..=most).filter(|n| fits(*n)).map(|n| n.to_string()).collect();
    numbers.join(", ")
}
