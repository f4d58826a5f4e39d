//! Operations on distributed matrices: shapes checked, FLOPs counted, results allocated, the same on every
//! device. Only this module decides which operations may read a rank's local part, and what type the result
//! has: the trusted base of the type checks.
mod activation;
mod attention;
mod bias;
mod dropout;
mod exchange;
#[cfg(test)]
#[path = "tests/exhibits.rs"]
mod exhibits;
mod experts;
mod features;
mod gradients;
mod handles;
mod heads;
mod loss;
mod norm;
pub mod operate;
mod ring;
mod root;
mod router;
pub mod sharded;
mod stream;
mod tensors;
mod tokens;

pub use activation::{
    activate, activate_backward, activate_stream, activate_stream_backward, swiglu, swiglu_backward,
};
pub use attention::{attention, attention_backward, cross_attention, cross_attention_backward, rotate};
pub use bias::{add_bias, add_columns, bias_gradient, columns_bias_gradient};
pub use dropout::dropout;
pub use exchange::HeadExchange;
pub use experts::{Matrices, dots, expert_columns, expert_gradient, expert_rows, rows_of, scaled};
pub use features::{FeatureExchange, ReceivedFeatures};
use gradients::weight_gradient;
pub use gradients::{columns_gradient, gathered_gradient, rows_gradient};
pub(crate) use handles::same;
pub use handles::{Columns, Partial, Rows, Split, matmul};
pub use heads::{norm_heads, norm_heads_backward};
pub use loss::{
    cross_entropy_backward, embed, embed_backward, mean_square, position_rows, position_rows_backward,
    split_cross_entropy, top_k,
};
pub use norm::{norm, norm_backward};
pub use ring::AttentionRing;
pub use root::RootExchange;
pub use router::{
    RouterLoss, choose, gates, logits, pooled, router_backward, router_gradient, router_input_gradient,
};
pub use stream::{Branches, Region, Stream, join};
pub(crate) use tensors::product;
use tensors::{count_product, sum_of};
pub use tensors::{filled, plus, wide_along};
use tokens::scatter_tokens;
pub use tokens::{gather_keys, gather_last, gather_tokens, last_rows};
