//! Errors of one sentence, for the user.
use comm::{FlightRecorder, MeetingError, RankError};
use std::fmt::Display;

/// An error: one clear sentence, for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Error {
    /// The sentence.
    pub why: String,
    /// The last calls of every rank, if ranks failed.
    pub calls: Option<FlightRecorder>,
    /// True if another process tells the user of it.
    pub told: bool,
    /// Smallest memory limit that works, in bytes per rank, if the error is that the limit is too small.
    pub(crate) works: Option<usize>,
}

impl Error {
    /// Creates an error that is not the failure of a rank.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), calls: None, told: false, works: None }
    }
}

impl From<RankError> for Error {
    fn from(failure: RankError) -> Self {
        let why = failure.to_string();
        Self { why, calls: Some(failure.calls), told: failure.told_by.is_some(), works: None }
    }
}

impl From<MeetingError> for Error {
    fn from(MeetingError { why, told }: MeetingError) -> Self {
        Self { told, ..Self::new(why) }
    }
}

/// A result whose error is one sentence.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns from the function with an error of one sentence, written as for `format!`.
#[macro_export]
macro_rules! bail {
    ($($words:tt)+) => {
        return Err($crate::Error::new(format!($($words)+)))
    };
}

/// Marker of errors whose text is already one clear sentence; they convert into [`Error`].
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
    algorithms::NoSchedule,
    comm::CommError,
    ops::Error,
    tensor::IdsError,
    tensor::count::Overflow,
    tensor::files::Error,
    tensor::safetensors::Error,
);
