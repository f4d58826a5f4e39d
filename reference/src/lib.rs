//! The oracle: whole transformers and a classifier, as plain loops over any [`tensor::Scalar`]. Split
//! programs are compared with it, and share only `Scalar`, `Rope`, `Dropout`, `Noise`, `IGNORED` and data
//! types of `shape`. Matrices are row-major slices, a row per token, sequences packed without padding; a
//! wrong length panics. Floats give the ordinary model; on `F61` correct programs are bit-equal; `Dual<F61>`
//! carries derivatives; `Degree` bounds how often a proof errs.
//!
//! | files | contents |
//! |---|---|
//! | `linear.rs`, `bias.rs`, `norm.rs`, `layer_norm.rs`, `head_norm.rs` | linear layer, bias; norms |
//! | `gated.rs`, `activation.rs`, `softmax.rs`, `dropout.rs`, `rotary.rs` | functions of elements and rows |
//! | `mask.rs`, `look.rs`, `attention.rs`, `cross_attention.rs` | sequences, masks; attention |
//! | `feed_forward.rs`, `router.rs`, `experts.rs`, `balance.rs` | feed-forward; experts, and their losses |
//! | `latent.rs`, `block.rs`, `model.rs`, `pass.rs`, `parameters.rs`, `loss.rs`, `see.rs` | a transformer |
//! | `classifier.rs`, `design.rs`, `update.rs`, `train.rs`, `stale.rs` | a classifier; training steps |
//! | `degree.rs`, `compiled.rs`; tests: `proof.rs`, `tests/all/` | degrees; derivatives, Hugging Face |

// Functions of matrices, each with its gradient.
mod activation;
mod attention;
mod bias;
mod cross_attention;
mod degree;
mod dropout;
mod gated;
mod head_norm;
mod layer_norm;
mod linear;
mod look;
mod loss;
mod mask;
mod norm;
mod rotary;
mod router;
mod softmax;

// Parameters, what a pass shows of them, and the change of a step.
mod parameters;
mod see;
mod sparse;
mod update;

// Parts of a model.
mod balance;
mod block;
mod classifier;
mod experts;
mod feed_forward;
mod latent;
mod model;

// Passes, and training.
mod design;
mod pass;
mod stale;
mod train;

// Instances for floats, compiled once.
mod compiled;

#[cfg(test)]
#[path = "tests/proof.rs"]
mod proof;

pub use activation::{activate, activate_backward};
pub use attention::{attention, attention_backward};
pub use bias::{add_bias, bias_gradient};
pub use block::BlockSaved;
pub use classifier::Classifier;
#[doc(hidden)]
pub use compiled::compiled;
pub use cross_attention::{cross_attention, cross_attention_backward};
pub use degree::{Degree, Function, Tally};
pub use design::Design;
pub use dropout::{Pass, dropout};
pub use experts::{Mixture, MixtureSaved};
pub use gated::{gated, gated_backward};
pub use head_norm::{head_norm, head_norm_backward};
pub use layer_norm::{layer_norm, layer_norm_backward};
pub use linear::{linear, linear_backward};
pub use look::ScoreRules;
pub use loss::{
    cross_entropy, cross_entropy_backward, embed, embed_backward, mean_square_backward, mean_squared_error,
};
pub use mask::{Mask, Tokens};
pub use model::Model;
pub use norm::{rms_norm, rms_norm_backward};
pub use parameters::Weights;
pub use pass::Sequence;
pub use rotary::rotary;
pub use see::{See, Walk};
pub use shape::OptimizerKind as Optimizer;
pub use sparse::Sparsity;
pub use stale::{StaleTrainer, Staleness};
pub use train::{Step, Trainer};
pub use update::{ADAMW, LION, MUON, SGD, Updates};
