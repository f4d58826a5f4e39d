//! What is said when something cannot be done.
use comm::{FlightRecorder, RankError};
use std::fmt::Display;

/// One clear sentence, for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Error {
    /// The sentence.
    pub why: String,
    /// The last calls of every rank, where ranks failed.
    pub calls: Option<FlightRecorder>,
    /// The smallest limit of memory that works, in bytes of a rank, where a smaller one is why.
    pub(crate) works: Option<usize>,
}

impl Error {
    /// Of no rank.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), calls: None, works: None }
    }
}

impl From<RankError> for Error {
    fn from(failure: RankError) -> Self {
        Self { why: failure.to_string(), calls: Some(failure.calls), works: None }
    }
}

/// A result whose error is a sentence.
pub type Result<T> = std::result::Result<T, Error>;

/// Ends a function with a sentence, which is written as for `format!`.
#[macro_export]
macro_rules! bail {
    ($($words:tt)+) => {
        return Err($crate::Error::new(format!($($words)+)))
    };
}

/// An error whose text is one clear sentence, as it stands.
pub trait Sentence: Display {}

impl<E: Sentence> From<E> for Error {
    fn from(why: E) -> Self {
        Self::new(why.to_string())
    }
}

macro_rules! sentences {
    ($($source:ty),* $(,)?) => { $(impl Sentence for $source {})* };
}
sentences!(
    comm::CommError,
    layers::Error,
    tensor::IdsError,
    tensor::count::Uncountable,
    tensor::files::Error,
    tensor::safetensors::Error,
);
