//! Splits *between* layers: drives a training step over microbatches and data ranks, and saves and loads
//! parameters under any layout. It knows two things about the layers' computation: the end of a step updates
//! the routers' biases, and the largest logit is a classifier's answer.
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story

// Errors of one sentence, microbatches, tensors in files, and lists of strategies.
mod batch;
mod entry;
mod error;
mod lists;
mod stored;

// A pipeline's step as data: cells, actions, messages.
pub mod step;

// Strategies, a folder for each family, and the lists of all.
pub mod attention;
pub mod data;
pub mod dealing;
pub mod offload;
pub mod pipeline;
pub mod strategies;
pub mod tensor;

// The chunks of a rank and their executor, and the training step: gradient sums, clipping, the optimizer.
pub mod stages;
mod trainer;

// How a model is split: by the user's text, and by strategies of no list.
pub mod layout;
mod scheme;

// The ranks of a layout: where they start, links, timeouts, traces, blocks and whole parameters.
mod network;
pub mod session;
pub mod split;
mod whole;

// Files and costs of a run: checkpoints, tensors, digests of copies, measured times, dtypes.
pub mod checkpoint;
#[cfg(all(debug_assertions, not(test)))]
#[doc(hidden)]
pub mod compiled;
pub mod copies;
pub mod dtype;
pub mod dump;
pub mod measure;

// Peak memory, from shapes alone, and whether the machine, or a limit, can hold it.
pub mod budget;
pub mod price;

#[cfg(test)]
#[path = "tests/coded_moments.rs"]
mod coded_moments;
#[cfg(test)]
#[path = "tests/loss_scale.rs"]
mod loss_scale;
#[cfg(test)]
#[path = "tests/rests.rs"]
mod rests;
#[cfg(test)]
#[path = "tests/whole_matrices.rs"]
mod whole_matrices;

pub use batch::{Batch, Sequence};
pub use data::replicated::LocalBatch;
pub use entry::{Entry, Orientation, Stacked};
pub use error::{Error, Result, Sentence};
pub use layout::Layout;
pub use network::Network;
pub use ops::deal;
pub use pipeline::Pipeline;
pub use scheme::{AnyDeviceStrategy, Scheme};
pub use stages::{BuildContext, Stages};
pub use step::Schedule;
pub use stored::Stored;
pub use trainer::running::{Report, RunningStep, STEP};
pub use trainer::{Trainer, features};
pub use whole::{Named, named, whole};
