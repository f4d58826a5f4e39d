//! What can go wrong when a model is built or run.
use crate::Sharing;
use comm::{Axes, Axis, CommError};
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
    /// The ranks of an axis do not divide what they should share.
    #[error("{axis}={ranks} does not divide the {size} {what}; {axis} can be {}", divisors(*size))]
    Fit {
        /// What is shared: "heads", "columns of `blocks.0.mlp.gate_up`".
        what: String,
        /// How many there are.
        size: usize,
        /// The axis.
        axis: Axis,
        /// Its ranks.
        ranks: usize,
    },
    /// Ranks that do not divide the query heads, or can neither share KV heads nor hold copies of them.
    #[error(
        "{axis}={ranks} does not fit the {queries} query heads and {keys} KV heads of {name}; {axis} can be {}",
        sharing(*queries, *keys)
    )]
    Heads {
        /// Whose heads.
        name: String,
        /// How many query heads, which the ranks must divide.
        queries: usize,
        /// How many KV heads.
        keys: usize,
        /// The axis.
        axis: Axis,
        /// Its ranks.
        ranks: usize,
    },
    /// A size that no model has.
    #[error("{what} is {seen}; it must be {wanted}")]
    Size {
        /// Which one.
        what: String,
        /// The value seen.
        seen: String,
        /// The value wanted.
        wanted: String,
    },
    /// A share along one axis met a group or a weight of another.
    #[error("a share along axis {share} cannot meet what is split along axis {other}")]
    Axis {
        /// The share's.
        share: Axes,
        /// The other's.
        other: Axes,
    },
    /// What strategies would build cannot be: two the same layer, or one an embedding whose table the head shares.
    #[error("{0}")]
    Strategies(String),
    /// Initial values could not be had.
    #[error("{0}")]
    Values(String),
}

impl Error {
    /// Of this the value was seen, and that one wanted.
    pub(crate) fn size(what: impl Into<String>, seen: impl ToString, wanted: impl Into<String>) -> Self {
        Self::Size { what: what.into(), seen: seen.to_string(), wanted: wanted.into() }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

fn divisors(n: usize) -> String {
    let all: Vec<_> = (1..=n.min(64)).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    all.join(", ")
}

/// The numbers of ranks that can share so many heads.
fn sharing(queries: usize, keys: usize) -> String {
    let fits = |n: &usize| Sharing::heads(queries, keys, *n);
    let all: Vec<_> = (1..=queries.min(1024)).filter(fits).map(|n| n.to_string()).collect();
    all.join(", ")
}
