//! Type of the strategies of data ranks.
use comm::Axis;
use layers::{Choice, Design, NumberArgument, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule, ShardingStrategy};

/// A strategy of data ranks: which state of a parameter is kept sharded at rest.
#[derive(Debug)]
pub struct StateSplit {
    /// Its description.
    pub about: StrategyInfo,
    /// Changes which state is kept sharded at rest. All strategies that a layout names are applied, in the
    /// list's order. The number is the one that the layout gives: of ranks in a subgroup, or of tiles.
    pub change: fn(ShardingStrategy, Option<usize>) -> ShardingStrategy,
}

/// Description of a strategy of data ranks that shards state over all ranks or, as HSDP does, over subgroups:
/// `zero3/4`. Ranks of different subgroups hold the same shards.
///
/// Source: Zhao et al., "FSDP", §3.2.2, arXiv:2304.11277.
pub(super) const SHARDED: StrategyInfo = StrategyInfo {
    takes: NumberArgument::Optional("ranks of a subgroup"),
    shares: subgroups,
    chapter: Some("zero.md"),
    ..StrategyInfo::of(Some(Axis::Dp), Choice::State)
};

/// The ranks that subgroups of consecutive ranks divide: data ranks, and those that hold the same experts.
fn subgroups(_: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let Some(over) = sizes.number else { return vec![] };
    let product = |axes: &[Axis]| axes.iter().map(|axis| sizes.along(*axis)).product::<usize>();
    let experts = product(&[Axis::Ep, Axis::Etp]);
    let alike = product(&[Axis::Dp, Axis::Cp, Axis::Tp]) / experts;
    let one = |what, size| DividedSize { what, size, over, by: DivisionRule::Equally };
    let of_experts = (experts > 1 && alike > over).then(|| one("ranks with the same experts", alike));
    std::iter::once(one("data ranks", sizes.along(Axis::Dp))).chain(of_experts).collect()
}
