//! Parameters, distributed matrices and the operations on them, the same on every device: everything that
//! layers are made of.
//!
//! Start with [`handles::split`]: types say which part of a matrix a rank holds, so that a forgotten
//! all-reduce does not compile. [`Placement`]s say where parameters lie; gradient sums, clipping, gathering
//! and loading follow from them. Only this crate can read a rank's local part, and decides what type a result
//! has: it is the trusted base of the type checks.

// Ground: errors, plain matrices, and what is recorded of a run.
pub mod division;
pub mod error;
pub mod record;
pub mod tensors;

// Parameters: their values, gradients and state, and where the ranks hold them.
pub mod param;

// Handles: matrices and weights of which a rank holds a part.
pub mod handles;

// The context of a layer's call: pass, tokens, past; and the tables of rotations.
pub mod cx;
pub mod rotary;

// Operators, and rules that change parameters.
pub mod operators;
pub mod optimizer;

#[cfg(test)]
#[path = "tests/exhibits.rs"]
mod exhibits;

pub use cx::counts::LayerCounts;
pub use cx::hops::{Hop, Hops, TokenStretch};
pub use cx::shards::{Stretches, TokenShards, contiguous, deal};
pub use cx::{KeptValue, Pass, PassContext};
pub use division::{DividedSize, DivisionRule};
pub use error::{Error, Result};
pub use handles::split::{Columns, Partial, Rows, Split, matmul};
pub use handles::stream::{Branches, Region, Stream, join};
pub use handles::weight::{ColumnWeight, ExpertWeight, RowWeight, WholeWeight};
pub use operators::activation::{
    activate, activate_backward, activate_stream, activate_stream_backward, cap, gated, gated_backward,
    stretch,
};
pub use operators::attention::{
    attention, attention_backward, cross_attention, cross_attention_backward, rotate, sinks_gradient,
    softmax, softmax_backward,
};
pub use operators::bias::{add_bias, add_columns, bias_gradient, columns_bias_gradient};
pub use operators::dropout::dropout;
pub use operators::exchange::HeadExchange;
pub use operators::expert_biases::{OutputBiases, expert_bias_gradient, expert_biased};
pub use operators::experts::{Matrices, dots, expert_columns, expert_gradient, expert_rows, rows_of, scaled};
pub use operators::features::{FeatureExchange, ReceivedFeatures};
pub use operators::gradients::{
    columns_gradient, gathered_gradient, product_gradient, rows_gradient, whole_gradient,
    whole_input_gradient, whole_matmul,
};
pub use operators::heads::{InverseRms, norm_heads, norm_heads_backward};
pub use operators::joint_norm::{norm_jointly, norm_jointly_backward};
pub use operators::latent::{
    compressed, decompressed, expanded, expanded_backward, joined_streams, stream_parts, sum_of_shared,
    up_gradient, up_projected,
};
pub use operators::loss::{
    cross_entropy, cross_entropy_backward, embed, embed_backward, logits_gradient, mean_square, own_loss,
    position_rows, position_rows_backward, split_cross_entropy, top_k,
};
pub use operators::norm::{norm, norm_backward};
pub use operators::ring::AttentionRing;
pub use operators::root::RootExchange;
pub use operators::router::{
    RouterLoss, choose, gates, logit_bias_gradient, logits, pooled, router_backward,
};
pub use operators::running::AttentionCall;
pub use operators::tokens::{gather_keys, gather_last, gather_tokens, last_rows};
pub use optimizer::Optimizer;
pub use optimizer::list::{ADAMW, ADAMW_8BIT, MUON, OPTIMIZERS, SGD};
pub use optimizer::loss_scale::{GradientScaling, LossScaling};
pub use optimizer::rule::{MatrixRule, UpdateRule, UpdateStep};
pub use param::Param;
pub use param::keeper::Keeper;
pub use param::origin::Wide;
pub use param::part::{StateParts, UpdatePart};
pub use param::placement::matrices::{MatrixSections, ParamMatrix};
pub use param::placement::{Pieces, Placed, Placement, Section};
pub use param::shards::{AtRest, ShardingStrategy};
pub use param::state::VALUE;
pub use param::tensors::{ParamTensor, SavedPart, SavedRectangle, TensorAtRest};
pub use param::values::{Draw, EvenValues, ParamValues, RandomValues, ValueSource};
pub use record::{Activations, Record, RecordedActivation, RecordedCall};
pub use rotary::Rotary;
pub use tensors::{filled, plus, product, sum_of, wide_along};
