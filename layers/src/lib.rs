//! Layers of a transformer, split *inside* operators over the ranks of a mesh axis, with hand-written backward.
//!
//! Start with [`mod@column`]: one strategy, one file, its equations, its code, its proof. What ranks hold is said by
//! types ([`ops`]): a forgotten all-reduce does not compile. What lies where is said by [`Placement`]s, from which
//! gradient sync, clipping, gathering and loading follow. Nothing here knows of pipelines or batches.
pub mod attention;
pub mod block;
pub mod build;
pub mod chunk;
pub mod classifier;
pub mod column;
pub mod cross_attention;
pub mod cx;
pub mod embedding;
pub mod error;
pub mod gathered;
pub mod gradient_sums;
pub mod head;
pub mod head_norm;
pub mod layer;
pub mod layer_norm;
pub mod mlp;
pub mod norm;
pub mod ops;
pub mod optimizer;
pub mod param;
pub mod part;
pub mod placement;
pub mod proof;
pub mod record;
pub mod rms_norm;
pub mod rotary;
pub mod row;
pub mod scattered;
pub mod shape;
pub mod strategies;
pub mod strategy;
pub mod weight;

pub use attention::Attention;
pub use block::{Block, Residual};
pub use build::{Builder, Draw, Random, Values};
pub use chunk::{Chunk, Complete, Input, Output, emptied};
pub use classifier::Classifier;
pub use column::ColumnLinear;
pub use cross_attention::CrossAttention;
pub use cx::{Cx, Kept, Mode};
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use gathered::GatheredColumn;
pub use gradient_sums::{GradientSums, is_summed_in};
pub use head::Head;
pub use head_norm::HeadNorm;
pub use layer::Layer;
pub use layer_norm::LayerNorm;
pub use mlp::Mlp;
pub use norm::Norm;
pub use optimizer::{Kind, Optimizer};
pub use param::{Param, Wide};
pub use part::Part;
pub use placement::{Pieces, Placed, Placement, Section};
pub use record::{Activation, Activations, Record, Touched};
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use row::RowLinear;
pub use scattered::ScatteredRow;
pub use shape::{Biases, FeedForward, NormKind, Objective, Positions, Rates, Shape, Window};
pub use strategy::{About, Strategy};
