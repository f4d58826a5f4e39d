//! Plain data that describes a decoder-only transformer: its sizes and the variant of each part. Layers,
//! proofs and the oracle share it.
//!
//! | file | holds |
//! |---|---|
//! | `shape.rs` | a model: sizes, and the kind of each part |
//! | `pattern.rs` | the blocks that differ from the others |
//! | `block.rs` | a block of a model, and the distinct ones |
//! | `heads.rs` | heads of attention, and all arithmetic on them |
//! | `latent.rs` | latents that queries, keys and values are computed from |
//! | `experts.rs` | experts in place of a feed-forward |
//! | `optimizer.rs` | descriptions of optimizers: constants and state |
//! | `features.rs` | the table of options: words, a test for each, a way to give it to a model |
//! | `words.rs` | a model's description, made of that table |

// A model, and its optimizer.
mod block;
mod experts;
mod heads;
mod latent;
mod optimizer;
mod pattern;
mod scores;
mod shape;

// The options that a model has, and its description in words.
mod features;
mod words;

pub use block::{BlockKind, BlockShape};
pub use experts::{Balance, Experts, Groups, Scoring, SharedExpert};
pub use features::{ConfigField, FEATURES, Feature};
pub use heads::Heads;
pub use latent::Latent;
pub use optimizer::{
    Constant, Like, OptimizerInfo, OptimizerKind, Range, RuleStates, StateInfo, is_matrix_of_block,
};
pub use pattern::{Blocks, Pattern};
pub use scores::ScoreTerms;
pub use shape::{
    Activation, Biases, FeedForward, Gate, NormKind, NormPlaces, Objective, Positions, Rates, Shape, Window,
};
pub use tensor::quoted::counted;
