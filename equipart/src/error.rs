//! What the commands say when they cannot do what was asked.

/// One clear sentence. The binary prints it and exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! from {
    ($($source:ty),* $(,)?) => {
        $(impl From<$source> for Error {
            fn from(why: $source) -> Self {
                Self(why.to_string())
            }
        })*
    };
}
from!(
    comm::CommError,
    comm::RankError,
    layers::Error,
    parallel::Error,
    parallel::BatchError,
    parallel::StoredError,
    tensor::IdsError,
    tensor::files::Error,
    tensor::safetensors::Error,
    crate::config::ConfigError,
    crate::layout::LayoutError,
    crate::sampling::SamplingError,
    crate::schedule::ScheduleError,
    crate::text::TextError,
    crate::tokenizer::TokenizerError,
);
