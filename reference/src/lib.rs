//! The oracle: the whole unsplit model of the Llama family as plain loops, generic over [`tensor::Scalar`].
//!
//! Every split, fused or pipelined program of the workspace is judged by what stands here, so nothing here is
//! clever, and nothing is shared with what it judges but `Scalar`. Matrices are row-major slices; a row is a
//! token, and the sequences of a batch lie one after the other without padding. On floats this is the ordinary
//! model; on `F61` its values are bit-equal for every correct program; on `Dual<F61>` they carry derivatives;
//! on `Degree` they bound how often a proof could err.
//!
//! | file | holds |
//! |---|---|
//! | `linear.rs` | `Y = X·W` and its backward |
//! | `norm.rs` | root-mean-square norm |
//! | `swiglu.rs` | the gated activation |
//! | `softmax.rs` | softmax and log-sum-exp of one row, for attention and the loss |
//! | `rotary.rs` | rotary positions |
//! | `attention.rs` | grouped causal attention over ragged batches |
//! | `loss.rs` | embedding and cross-entropy: where token ids come in |
//! | `block.rs` | one transformer block, forward and backward |
//! | `model.rs` | names and shapes of the parameters, logits, gradients |
//! | `train.rs` | one training step: accumulation, clipping, SGD and `AdamW` |
//! | `proof.rs` | (tests) random directions, and the judgement that a backward is a derivative |
//! | `tests/llama.rs` | the same training in `PyTorch`, step by step |
//!
//! A slice whose length does not fit its shape is a bug of the caller and panics.
mod attention;
mod block;
mod linear;
mod loss;
mod model;
mod norm;
#[cfg(test)]
mod proof;
mod rotary;
mod softmax;
mod swiglu;
mod train;

pub use attention::{Heads, attention, attention_backward};
pub use block::BlockSaved;
pub use linear::{linear, linear_backward};
pub use loss::{cross_entropy, cross_entropy_backward, embed, embed_backward};
pub use model::{Model, Sequence, Weights};
pub use norm::{rms_norm, rms_norm_backward};
pub use rotary::rotary;
pub use swiglu::{swiglu, swiglu_backward};
pub use train::{Optimizer, Step, Trainer};
