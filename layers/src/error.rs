//! What can go wrong when a model is built or run.
use crate::model::strategy::sharing::Sharing;
use comm::{Axis, CommError};
use tensor::IdsError;

/// Why a layer could not be built, or a call not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Ranks did not meet.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A token id outside the vocabulary.
    #[error(transparent)]
    Ids(#[from] IdsError),
    /// What strategies would build cannot be: two the same layer, or one an embedding whose table the head shares.
    #[error("{0}")]
    Strategies(String),
    /// What cannot be, in one sentence: a size, ranks that do not divide it, handles of two axes, values that are not there.
    #[error("{0}")]
    Cannot(String),
}

impl Error {
    /// Of this the value was seen, and that one wanted.
    pub fn size(what: impl Into<String>, seen: impl ToString, wanted: impl Into<String>) -> Self {
        Self::Cannot(format!("{} is {}; it must be {}", what.into(), seen.to_string(), wanted.into()))
    }
    /// The ranks of an axis do not divide what they should share: so many "heads", or columns of a parameter.
    pub(crate) fn fit(what: &str, size: usize, (axis, ranks): (Axis, usize)) -> Self {
        let fits = numbers(size.min(64), |n| size.is_multiple_of(n));
        Self::Cannot(format!("{axis}={ranks} does not divide the {size} {what}; {axis} can be {fits}"))
    }
    /// Ranks that do not divide the query heads, or can neither share KV heads nor hold copies of them.
    pub(crate) fn heads(name: &str, [queries, keys]: [usize; 2], (axis, ranks): (Axis, usize)) -> Self {
        let heads = format!("{queries} query heads and {keys} KV heads of {name}");
        let fits = numbers(queries.min(1024), |n| Sharing::heads(queries, keys, n));
        Self::Cannot(format!("{axis}={ranks} does not fit the {heads}; {axis} can be {fits}"))
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The numbers of ranks up to this one that fit.
fn numbers(most: usize, fits: impl Fn(usize) -> bool) -> String {
    let all: Vec<_> = (1..=most).filter(|n| fits(*n)).map(|n| n.to_string()).collect();
    all.join(", ")
}
