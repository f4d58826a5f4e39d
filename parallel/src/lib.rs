//! Splits *between* operators: what goes around the layers. Here one training step over microbatches and data ranks
//! is driven, and parameters go to files and come back under any layout. Of what layers compute it knows two things: the
//! end of a step moves the biases of routers, and the best of some logits is a classifier's answer.
//!
//! | file | holds |
//! |---|---|
//! | `batch.rs` | a step's sequences, cut into microbatches |
//! | `layout.rs` | how a model is split, as the user writes it |
//! | `scheme.rs` | a layout, and strategies and a schedule that no list knows |
//! | `strategies.rs` | the lists of strategies, a folder each: `tensor/`, `dealing/`, `attention/`, `data/`, `pipeline/` |
//! | `step.rs`, `stages.rs` | steps as data; this rank's chunks and the executor that runs them |
//! | `trainer.rs` | a training step: microbatches, gradient sums, clipping, the optimizer |
//! | `whole.rs` | whole parameters by name, whichever stage has them |
//! | `stored.rs` | parameters in files: which tensor of the file is which part of which parameter |
//! | `checkpoint.rs` | parameters and optimizer state, written whole and read by shards |
//! | `session.rs` | the one place where a layout's ranks start: as threads, as ghosts, as one rank alone |
//! | `network.rs` | what lies between ranks: links, patience, a trace |
//! | `price.rs` | what ranks hold at most, from shapes alone |
//! | `budget.rs` | whether the machine, or a limit, can hold that |
//! | `measure.rs` | what a run took: time, memory, traffic |
//! | `number.rs` | the numbers that a run can have |
//! | `dump.rs` | what a run took, gave and learnt, as files |
//! | `error.rs` | one sentence, for the user |
pub mod attention;
mod batch;
pub mod budget;
mod checkpoint;
#[cfg(all(debug_assertions, not(test)))]
#[doc(hidden)]
pub mod compiled;
pub mod data;
pub mod dealing;
pub mod dump;
mod error;
pub mod layout;
pub mod measure;
mod network;
pub mod number;
pub mod pipeline;
pub mod price;
#[cfg(test)]
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

pub use batch::{Batch, Sequence};
pub use checkpoint::{restore_optimizer, save_optimizer, save_params};
pub use data::replicated::Share;
pub use error::{Error, Result, Sentence};
pub use layers::deal;
pub use layout::Layout;
pub use network::Network;
pub use pipeline::{Pipeline, Schedule};
pub use scheme::{Anywhere, Scheme};
pub use stages::{At, Stages};
pub use stored::{Entry, Orientation, Stacked, Stored};
pub use trainer::{Report, Trainer, features};
pub use whole::{Named, named, whole};

/// How the names of steps begin in a trace; their numbers follow.
pub const STEP: &str = "step ";
