//! Splits *between* operators: what goes around the layers. Here one training step over microbatches and data ranks
//! is driven, and parameters go to files and come back under any layout. Nothing here knows what a layer computes.
//!
//! | file | holds |
//! |---|---|
//! | `batch.rs` | a step's sequences, cut into microbatches, dealt to data ranks |
//! | `layout.rs` | how many ranks there are along each axis, as the user writes it |
//! | `trainer.rs` | accumulation over microbatches, gradient sync, clipping, the optimizer's step |
//! | `stored.rs` | parameters in files: which tensor of the file is which part of which parameter |
//! | `checkpoint.rs` | parameters and optimizer state, written whole and read by shares |
mod batch;
mod checkpoint;
pub mod layout;
pub mod model;
pub mod pipeline;
pub mod step;
mod stored;
mod trainer;
mod whole;

pub use batch::{Batch, BatchError, Sequence, Share, deal};
pub use checkpoint::{restore_optimizer, save_optimizer, save_params};
pub use layout::Layout;
pub use model::{At, Model};
pub use pipeline::Schedule;
pub use stored::{Entry, Orientation, Stored, StoredError};
pub use trainer::{Report, Trainer};
pub use whole::whole;

/// How the names of steps begin in a trace; their numbers follow.
pub const STEP: &str = "step ";

/// What can go wrong around the layers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// In a layer or in a collective.
    #[error(transparent)]
    Layers(#[from] layers::Error),
    /// A batch that cannot be dealt.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A file that cannot be read or written.
    #[error("{0}")]
    File(String),
}

impl From<comm::CommError> for Error {
    fn from(why: comm::CommError) -> Self {
        Self::Layers(why.into())
    }
}
impl From<tensor::IdsError> for Error {
    fn from(why: tensor::IdsError) -> Self {
        Self::Layers(why.into())
    }
}
impl From<tensor::safetensors::Error> for Error {
    fn from(why: tensor::safetensors::Error) -> Self {
        Self::File(why.to_string())
    }
}
impl From<StoredError> for Error {
    fn from(why: StoredError) -> Self {
        Self::File(why.to_string())
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
