//! What the commands say when they cannot do what was asked.
use comm::{FlightRecorder, RankError};

/// One clear sentence. The binary prints it and exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Error {
    /// The sentence.
    pub why: String,
    /// The last calls of every rank, where ranks failed. The binary prints them below the sentence.
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

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! from {
    ($($source:ty),* $(,)?) => {
        $(impl From<$source> for Error {
            fn from(why: $source) -> Self {
                Self::new(why.to_string())
            }
        })*
    };
}
from!(
    comm::CommError,
    layers::Error,
    parallel::Error,
    parallel::BatchError,
    parallel::StoredError,
    tensor::IdsError,
    tensor::count::Uncountable,
    tensor::files::Error,
    tensor::safetensors::Error,
    crate::config::ConfigError,
    crate::layout::LayoutError,
    crate::sampling::SamplingError,
    crate::schedule::ScheduleError,
    crate::text::TextError,
    crate::tokenizer::TokenizerError,
);
