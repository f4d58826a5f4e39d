//! Tensor parallelism, `tp=N`: the ranks split every layer of a block, by heads, hidden features or
//! vocabulary. Activations between blocks are whole on every rank.
//!
//! ```text
//! Y[B,O_t] = X · W[I,O_t]        column (`layers/src/linear/column.rs`): Q, K, V, gate and up
//! Y[B,O]   = Σ_t X_t · W[I_t,O]  row (`row.rs`): out, down  all-reduce, B·O elements, forward; B·I backward
//! ```
//!
//! The usual layers are already split along this axis; one rank is a group of one. So there is nothing to
//! build.
//!
//! Source: Shoeybi et al., "Megatron-LM", §3, arXiv:1909.08053. Chapters: 3 to 6.
use comm::Axis;
use kernels::Kernels;
use layers::{Choice, Design, Sizes, Strategy, StrategyInfo};
use ops::{DividedSize, DivisionRule};

/// Tensor parallelism.
pub struct TensorParallel;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "tensor parallelism",
    word: "tp",
    shares,
    paper: "Shoeybi et al., arXiv:1909.08053",
    chapter: Some("columns-and-rows.md"),
    hints: &[
        ("padding", "ids beyond the vocabulary's end are padding: no gradient, and not counted in the norm"),
        ("loss", "the loss sums over all vocabulary shards, and reads each target on the rank that has it"),
        ("norm²", "the norm counts each part of a parameter once: replicas on one of their ranks"),
        (
            ".bias",
            "a row layer's bias is added once, after the sum; a column layer's is split like its columns",
        ),
        ("qkv", "each section is split on its own; replicated KV heads sum their gradients"),
        ("dx", "dX of a column layer is a sum over ranks; of a row layer it is this rank's columns"),
        ("", "a product over a split dimension is a partial sum: it needs exactly one all-reduce"),
    ],
    ..StrategyInfo::of(Some(Axis::Tp), Choice::Layers)
};

fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let one = |what, size, by| DividedSize { what, size, over: sizes.along(Axis::Tp), by };
    let Some(shape) = design.shape() else {
        let hidden = |size| one("hidden features", size, DivisionRule::Equally);
        return design.shared().into_iter().map(hidden).collect();
    };
    let of_all = shape.experts.and_then(|experts| experts.shared);
    let of_all = of_all.map(|e| one("hidden features of the shared expert", e.hidden, DivisionRule::Equally));
    let heads = [
        one("query heads", shape.heads.queries, DivisionRule::Equally),
        one("KV heads", shape.heads.keys, DivisionRule::OrCopies),
    ];
    let dense = (0..shape.blocks).any(|block| shape.block(block).experts.is_none());
    let hidden = dense.then(|| one("hidden features", shape.hidden, DivisionRule::Equally));
    heads.into_iter().chain(hidden).chain(of_all).collect()
}

impl<D: Kernels> Strategy<D> for TensorParallel {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
}
