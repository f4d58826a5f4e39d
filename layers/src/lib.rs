//! Layers of a transformer, split *inside* operators over the ranks of a mesh axis, with hand-written
//! backward.
//!
//! Start with [`mod@linear::column`]: one strategy in one file, with its equations, code and proof. Types say
//! which part of a matrix a rank holds ([`ops`]): a forgotten all-reduce does not compile. A rank's part of a
//! model is a [`Chunk`] of runs of blocks; the crate `parallel` decides the order in which these run, and how
//! a batch is cut into microbatches.

// The trait of layers.
pub mod layer;

// Where layers are built: descriptions of a model's parts, and the strategies that build them.
pub mod build;

// Layers that stand on no other.
pub mod embedding;
pub mod head;
pub mod linear;
pub mod norm;

// Layers made of these.
pub mod attention;
pub mod mlp;

// Models: blocks in a chunk, and graphs of operators.
pub mod graph;
pub mod model;

// The harness in which a layer is proven.
#[cfg(any(test, feature = "proof"))]
pub mod proof;

pub use attention::Attention;
pub use attention::cross_attention::CrossAttention;
pub use attention::head_norm::HeadNorm;
pub use attention::latent::LatentAttention;
pub use attention::self_attention::SelfAttention;
pub use build::Builder;
pub use build::design::Design;
pub use build::hooks::{CellRun, Hooks, RunPass};
pub use build::part::{Block, BoxedLayer};
pub use build::spec::Spec;
pub use build::stage::{Ending, Half, Input, Output, StageRequest, Targets};
pub use build::strategy::{Choice, NumberArgument, Sizes, Strategy, StrategyInfo, Tries};
pub use embedding::Embedding;
pub use head::Head;
pub use layer::{InputHalf, Layer, Params};
pub use linear::column::ColumnLinear;
pub use linear::row::RowLinear;
pub use linear::whole::WholeLinear;
pub use mlp::Mlp;
pub use model::block::Residual;
pub use model::chunk::Chunk;
pub use norm::Norm;
pub use shape::{
    Balance, Biases, BlockKind, BlockShape, Blocks, Constant, Experts, FeedForward, Gate, Groups, Latent,
    Like, NormKind, NormPlaces, Objective, OptimizerInfo, OptimizerKind, Pattern, Positions, Range, Rates,
    RuleStates, Scoring, Shape, SharedExpert, StateInfo, Window, counted,
};
