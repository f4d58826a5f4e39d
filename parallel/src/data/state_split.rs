//! Type of the strategies of data ranks.
use layers::{ShardingStrategy, StrategyInfo};

/// A strategy of data ranks: which state of a parameter is kept sharded at rest.
#[derive(Debug)]
pub struct StateSplit {
    /// Its description.
    pub about: StrategyInfo,
    /// Changes which state is kept sharded at rest. All strategies that a layout names are applied, in the
    /// list's order. The number is the one that the layout gives: of ranks in a subgroup, or of tiles.
    pub change: fn(ShardingStrategy, Option<usize>) -> ShardingStrategy,
}
