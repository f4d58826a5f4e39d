//! The oracle: whole unsplit models of the GPT-2, Llama, Mistral, Qwen and Mixtral families, their blocks, and a classifier, as plain
//! loops, generic over [`tensor::Scalar`].
//!
//! Every split, fused or pipelined program of the workspace is judged by what stands here, so nothing here is
//! clever, and nothing that computes is shared with what it judges but `Scalar`, and what both sides must agree on: `Rope`,
//! `Dropout`, `Noise` and `IGNORED`. What a model is made of and which optimizer it has is plain data of the crate `shape`. Matrices are row-major slices; a row is a token, and the sequences of a batch lie one
//! after the other without padding. On floats this is the ordinary model; on `F61` its values are bit-equal for every
//! correct program; on `Dual<F61>` they carry derivatives; on `Degree` they bound how often a proof could err.
//!
//! | file | holds |
//! |---|---|
//! | `linear.rs`, `bias.rs` | `Y = X·W`, `Y += b`, and their backwards |
//! | `norm.rs`, `layer_norm.rs`, `head_norm.rs` | root-mean-square norm; layer norm; norms of queries and keys |
//! | `swiglu.rs`, `activation.rs` | the gated activation; the plain ones |
//! | `dropout.rs` | dropout, and the pass it depends on |
//! | `softmax.rs` | softmax and log-sum-exp of one row, for attention and the loss |
//! | `rotary.rs` | rotary positions |
//! | `mask.rs` | the sequences of a batch, and whom a token sees |
//! | `look.rs` | queries that look at keys: scores, weights, sums, and the way back |
//! | `attention.rs`, `cross_attention.rs` | grouped attention over ragged batches: to oneself, to a memory |
//! | `loss.rs` | embedding and cross-entropy, where token ids come in; the mean square |
//! | `parameters.rs` | maps that know their parameters by name |
//! | `feed_forward.rs` | two matrices with an activation between them |
//! | `router.rs`, `experts.rs`, `balance.rs` | who chooses which experts; a layer of them; what they add to the loss |
//! | `block.rs` | one transformer block, forward and backward |
//! | `model.rs` | what a model is; names and shapes of its parameters |
//! | `see.rs` | what a pass shows of itself, by name |
//! | `pass.rs` | one pass through the model: logits, loss, gradients |
//! | `classifier.rs` | affine layers with `ReLU` between them |
//! | `design.rs` | a model of any kind |
//! | `update.rs`, `train.rs` | clipping, SGD and `AdamW`; one training step over microbatches |
//! | `degree.rs` | the degrees of what the field computes, as a number |
//! | `proof.rs` | (tests) random directions, models of every kind, the judgement that a backward is a derivative |
//! | `tests/all/` | the same training by Hugging Face and `PyTorch`, step by step |
//!
//! A slice whose length does not fit its shape is a bug of the caller and panics.
mod activation;
mod attention;
mod balance;
mod bias;
mod block;
mod classifier;
mod compiled;
mod cross_attention;
mod degree;
mod design;
mod dropout;
mod experts;
mod feed_forward;
mod head_norm;
mod layer_norm;
mod linear;
mod look;
mod loss;
mod mask;
mod model;
mod norm;
mod parameters;
mod pass;
#[cfg(test)]
mod proof;
mod rotary;
mod router;
mod see;
mod softmax;
mod swiglu;
mod train;
mod update;

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
pub use head_norm::{head_norm, head_norm_backward};
pub use layer_norm::{layer_norm, layer_norm_backward};
pub use linear::{linear, linear_backward};
pub use loss::{
    cross_entropy, cross_entropy_backward, embed, embed_backward, mean_square, mean_square_backward,
};
pub use mask::{Mask, Tokens};
pub use model::Model;
pub use norm::{rms_norm, rms_norm_backward};
pub use parameters::Weights;
pub use pass::Sequence;
pub use rotary::rotary;
pub use see::{See, Walk};
pub use shape::Kind as Optimizer;
pub use swiglu::{swiglu, swiglu_backward};
pub use train::{Step, Trainer};
pub use update::Updates;
