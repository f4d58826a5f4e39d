//! Gathered keys and values, `cp=N:gathered`: before each attention core every context rank gathers the keys
//! and values of all tokens, and its own queries attend to them as on one rank. With few KV heads these are
//! small beside the activations, which stay sharded.
//!
//! ```text
//! forward   [K|V][B,2K_t·d] = all-gather of [K|V][B_r,2K_t·d],   O[B_r,H_t·d] = attention(Q[B_r], K, V)
//! backward  d[K|V][B_r] = reduce-scatter of d[K|V][B], in the wide dtype, of each rank's queries
//! ```
//! A KV cache holds the keys and values of all ranks on every rank.
//!
//! Source: Llama Team, "The Llama 3 herd of models", §3.3.2, arXiv:2407.21783. Chapter: context parallelism.
use comm::Axis;
use kernels::Kernels;
use layers::attention::core::AttentionCore;
use layers::build::strategy::Core;
use layers::{BoxedLayer, Builder, Choice, Strategy, StrategyInfo};
use ops::{Result, Split, TokenShards};

/// Gathered keys and values.
pub struct Gathered;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "context parallelism with gathered keys and values",
    word: "gathered",
    paper: "Llama Team, arXiv:2407.21783",
    chapter: Some("context-parallelism.md"),
    hints: &[
        ("gradient of", "a key's gradient is a sum over the queries of all ranks: reduce-scattered"),
        ("", "keys and values are put in the order of their positions before queries attend to them"),
    ],
    ..StrategyInfo::of(Some(Axis::Cp), Choice::Core)
};

impl<D: Kernels> Strategy<D> for Gathered {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn core(&self, at: &Builder<D>, core: &Core) -> Result<Option<BoxedLayer<D, Split<D>, Split<D>>>> {
        let group = TokenShards::sharers(at.mesh).named(core.name);
        Ok(Some(BoxedLayer::new(AttentionCore::new(at, core, Some(group))?)))
    }
}
