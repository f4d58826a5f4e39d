//! Memory-centric tiling, `dp=N:zero3:tile/T`: a linear layer gathers its weight in `T` tiles of its outputs,
//! one after another, so that the whole weight and its whole gradient are never on a rank.
//!
//! ```text
//! forward   Y[:,j] = X · W[:,j] + b[:,j]     all-gather of W[:,j], for each tile j
//! backward  dX = Σ_j dY[:,j] · W[:,j]ᵀ       all-gather of W[:,j]; dX is reduced over tensor ranks once
//!           dW_d[:,j] = Σ_d Xᵀ · dY[:,j]     reduce-scatter
//! ```
//!
//! The linear layers of attention, feed-forward and head have tiles; not experts, and not a head that is tied
//! to the embedding, which reads rows. Values of other parameters are gathered as under
//! [`zero3`](super::zero3). In a narrow dtype dX is rounded after each tile.
//!
//! Source: Rajbhandari et al., "`ZeRO-Infinity`", §5.1.3, arXiv:2104.07857. Chapter: fitting a model.
use super::state_split::StateSplit;
use comm::Axis;
use layers::{Choice, NumberArgument, StrategyInfo, Tries};
use ops::ShardingStrategy;

/// Tiles of linear layers.
pub static TILE: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "memory-centric tiling",
        word: "tile",
        takes: NumberArgument::Required("tiles of a linear layer"),
        tries: Tries::Needed(&[4]),
        needs: Some("zero3"),
        paper: "Rajbhandari et al., arXiv:2104.07857",
        chapter: Some("fitting-a-model.md"),
        hints: &[
            (
                "gradient of",
                "a tile's gradient is summed over data ranks and added to the tile's own columns",
            ),
            (
                "",
                "a tile is columns of the weight: each product reads the columns of its own tile, dX sums all",
            ),
        ],
        ..StrategyInfo::of(Some(Axis::Dp), Choice::Tiling)
    },
    change: |rests, tiles| ShardingStrategy { tiles: tiles.unwrap_or(1), ..rests },
};
