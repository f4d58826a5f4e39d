//! Layers of a transformer, split *inside* operators over the ranks of a mesh axis, with hand-written backward.
//!
//! Start with [`mod@column`]: one strategy, one file, its equations, its code, its proof. What ranks hold is said by
//! types ([`ops`]): a forgotten all-reduce does not compile. What lies where is said by [`Placement`]s, from which
//! gradient sync, clipping, gathering and loading follow. Nothing here knows of pipelines or batches.
pub mod attention;
pub mod block;
pub mod build;
pub mod chunk;
pub mod column;
pub mod cx;
pub mod embedding;
pub mod error;
pub mod head;
pub mod layer;
pub mod mlp;
pub mod norm;
pub mod ops;
pub mod optimizer;
pub mod param;
pub mod placement;
pub mod proof;
pub mod rotary;
pub mod row;
pub mod weight;

pub use attention::Attention;
pub use block::{Block, Residual};
pub use build::{Builder, Draw, Random, Values};
pub use chunk::{Chunk, Input, Output, Shape};
pub use column::ColumnLinear;
pub use cx::{Cx, Kept, Mode};
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use head::Head;
pub use layer::Layer;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use optimizer::{Kind, Optimizer};
pub use param::Param;
pub use placement::{Placed, Placement};
pub use rotary::Rotary;
pub use row::RowLinear;
