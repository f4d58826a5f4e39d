//! Layers of a transformer, split *inside* operators over the ranks of a mesh axis, with hand-written
//! backward.
//!
//! Start with [`mod@linear::column`]: one strategy in one file, with its equations, code and proof. Types say
//! which part of a matrix a rank holds ([`ops`]): a forgotten all-reduce does not compile. [`Placement`]s say
//! where parameters lie; gradient sync, clipping, gathering and loading follow from them. A rank's part of a
//! model is a [`Chunk`] of runs of blocks; the crate `parallel` decides the order in which these run, and how
//! a batch is cut into microbatches.
pub mod attention;
pub mod embedding;
pub mod error;
pub mod graph;
pub mod head;
pub mod layer;
pub mod linear;
pub mod mlp;
pub mod model;
pub mod norm;
pub mod ops;
pub mod optimizer;
pub mod param;
#[cfg(any(test, feature = "proof"))]
pub mod proof;

pub use attention::Attention;
pub use attention::cross_attention::CrossAttention;
pub use attention::head_norm::HeadNorm;
pub use attention::rotary::Rotary;
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use head::Head;
pub use layer::{InputHalf, Layer, Params};
pub use linear::column::ColumnLinear;
pub use linear::row::RowLinear;
pub use mlp::Mlp;
pub use model::block::Residual;
pub use model::build::Builder;
pub use model::chunk::Chunk;
pub use model::cx::hops::{Hop, Hops, TokenStretch};
pub use model::cx::shards::{Stretches, TokenShards, contiguous, deal};
pub use model::cx::{KeptValue, LayerCounts, Pass, PassContext};
pub use model::design::Design;
pub use model::hooks::Hooks;
pub use model::part::{Block, BoxedLayer};
pub use model::record::{Activations, Record, RecordedActivation, RecordedCall};
pub use model::spec::Spec;
pub use model::stage::{Ending, Half, Input, Output, StageRequest, Targets};
pub use model::strategy::{
    Choice, DividedSize, DivisionRule, NumberArgument, Sizes, Strategy, StrategyInfo, Tries,
};
pub use norm::Norm;
pub use optimizer::Optimizer;
pub use optimizer::list::{ADAMW, ADAMW_8BIT, MUON, OPTIMIZERS, SGD};
pub use optimizer::loss_scale::{GradientScaling, LossScaling};
pub use optimizer::part::{StateParts, UpdatePart};
pub use optimizer::rule::{MatrixRule, UpdateRule, UpdateStep};
pub use param::keeper::Keeper;
pub use param::placement::matrices::{MatrixSections, ParamMatrix};
pub use param::placement::{Pieces, Placed, Placement, Section};
pub use param::shards::{AtRest, ShardingStrategy};
pub use param::state::VALUE;
pub use param::tensors::{ParamTensor, SavedPart, SavedRectangle, TensorAtRest};
pub use param::values::{Draw, EvenValues, ParamValues, RandomValues, ValueSource};
pub use param::{Param, Wide};
pub use shape::{
    Balance, Biases, Blocks, Constant, Experts, FeedForward, Groups, Like, NormKind, Objective,
    OptimizerInfo, OptimizerKind, Positions, Range, Rates, RuleStates, Scoring, Shape, SharedExpert,
    StateInfo, Window, counted,
};
