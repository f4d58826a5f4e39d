//! Splits *between* layers: drives a training step over microbatches and data ranks, and saves and loads
//! parameters under any layout. It knows two things about the layers' computation: the end of a step updates
//! the routers' biases, and the largest logit is a classifier's answer.
//!
//! | files | contents |
//! |---|---|
//! | `layout.rs`, `scheme.rs` | how a model is split, by the user's text; and by strategies of no list |
//! | `strategies.rs` | the lists, a folder each: `tensor/`, `dealing/`, `attention/`, `data/`, `pipeline/` |
//! | `batch.rs`, `trainer.rs` | microbatches; the training step: gradient sums, clipping, the optimizer |
//! | `step.rs`, `stages.rs`, `split.rs` | schedules as data; this rank's chunks, their executor and blocks |
//! | `whole.rs`, `stored.rs`, `checkpoint.rs` | whole parameters; tensors in files; saving and restoring |
//! | `session.rs`, `network.rs` | the one place where a layout's ranks start; links, timeouts, traces |
//! | `price.rs`, `budget.rs` | peak memory, from shapes alone; whether the machine, or a limit, can hold it |
//! | `measure.rs`, `dump.rs`, `copies.rs` | costs of a run; its tensors as files; digests of copies |
//! | `dtype.rs`, `error.rs` | the dtypes of a run; errors of one sentence |
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story
pub mod attention;
mod batch;
pub mod budget;
pub mod checkpoint;
#[cfg(test)]
#[path = "tests/coded_moments.rs"]
mod coded_moments;
#[cfg(all(debug_assertions, not(test)))]
#[doc(hidden)]
pub mod compiled;
pub mod copies;
pub mod data;
pub mod dealing;
pub mod dtype;
pub mod dump;
mod error;
pub mod layout;
#[cfg(test)]
#[path = "tests/loss_scale.rs"]
mod loss_scale;
pub mod measure;
mod network;
pub mod offload;
pub mod pipeline;
pub mod price;
#[cfg(test)]
#[path = "tests/rests.rs"]
mod rests;
mod scheme;
pub mod session;
pub mod split;
pub mod stages;
pub mod step;
mod stored;
pub mod strategies;
pub mod tensor;
mod trainer;
mod whole;
#[cfg(test)]
#[path = "tests/whole_matrices.rs"]
mod whole_matrices;

pub use batch::{Batch, Sequence};
pub use data::replicated::LocalBatch;
pub use error::{Error, Result, Sentence};
pub use layout::Layout;
pub use network::Network;
pub use ops::deal;
pub use pipeline::{Pipeline, Schedule};
pub use scheme::{AnyDeviceStrategy, Scheme};
pub use stages::{BuildContext, Stages};
pub use stored::{Entry, Orientation, Stacked, Stored};
pub use trainer::running::RunningStep;
pub use trainer::{Report, Trainer, features};
pub use whole::{Named, named, whole};

/// Prefix of a training step's name in a trace; the step's number follows.
pub const STEP: &str = "step ";
