//! Type of the strategies of data ranks.
use layers::{ShardingStrategy, StrategyInfo};

/// A strategy of data ranks: which state of a parameter is kept sharded at rest.
#[derive(Debug)]
pub struct StateSplit {
    /// Its description.
    pub about: StrategyInfo,
    /// Changes which state is kept sharded at rest. All strategies that a layout names are applied, in the
    /// list's order. A number that the layout gives is the number of ranks in a subgroup.
    pub change: fn(ShardingStrategy, Option<usize>) -> ShardingStrategy,
}
