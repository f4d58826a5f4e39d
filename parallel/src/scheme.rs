//! How a model is split: a layout, and a strategy or schedule that no list has, such as one of another crate.
use crate::{BuildContext, Error, Layout, Pipeline, Result, Schedule};
use kernels::{Kernels, MetaOf};
use layers::{Choice, Design, Strategy, StrategyInfo};
use ops::ShardingStrategy;
use std::fmt;

/// A strategy that builds its layers on a device, and on the meta device, where they are priced. Every
/// strategy that is generic over devices is one.
pub trait AnyDeviceStrategy<D: Kernels>: Strategy<D> + Strategy<MetaOf<D>> {}

impl<D: Kernels, S: Strategy<D> + Strategy<MetaOf<D>> + ?Sized> AnyDeviceStrategy<D> for S {}

/// A layout, with strategies and a schedule beyond those that it names. A layout converts into one with
/// `into()`.
pub struct Scheme<'a, D: Kernels> {
    /// Layout, with the strategies of the lists that it names.
    pub layout: &'a Layout,
    /// Further strategies that build layers.
    pub others: &'a [&'a dyn AnyDeviceStrategy<D>],
    /// Schedule in place of the layout's schedule of stages.
    pub schedule: Option<Pipeline>,
}

impl<D: Kernels> Clone for Scheme<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Kernels> Copy for Scheme<'_, D> {}

impl<'a, D: Kernels> From<&'a Layout> for Scheme<'a, D> {
    fn from(layout: &'a Layout) -> Self {
        Self { layout, others: &[], schedule: None }
    }
}

impl<'a, D: Kernels> Scheme<'a, D> {
    /// The layout with these strategies added.
    pub fn with(layout: &'a Layout, others: &'a [&'a dyn AnyDeviceStrategy<D>]) -> Self {
        Self { others, ..layout.into() }
    }
    /// The layout with its stages run under this schedule.
    pub fn scheduled(layout: &'a Layout, schedule: &'static dyn Schedule) -> Self {
        Self { schedule: Some(schedule.into()), ..layout.into() }
    }
    fn others(&self) -> impl Iterator<Item = &'static StrategyInfo> {
        let others = self.others.iter().map(|other| Strategy::<D>::about(*other));
        others.chain(self.schedule.map(|of| of.schedule.about()))
    }
    /// Returns the descriptions of its strategies, the layout's first.
    pub fn strategies(&self) -> Vec<&'static StrategyInfo> {
        let replaced = |about: &&StrategyInfo| about.choice == Choice::Schedule && self.schedule.is_some();
        self.layout.strategies().into_iter().filter(|about| !replaced(about)).chain(self.others()).collect()
    }
    /// Checks that the ranks of every axis can share a model.
    ///
    /// # Errors
    /// If the ranks of an axis do not divide what they share, with the numbers of ranks that do; if two
    /// strategies of the layout would build the same layer.
    pub fn fits(&self, design: impl Into<Design>) -> Result<()> {
        let design = design.into();
        self.layout.fit_for(&self.strategies(), &design)?;
        self.pipeline().fits(&design, self.layout.rests()).map_err(Error::new)
    }
    /// Number of quantities of a model that the ranks of their axes cannot share.
    pub fn misfits(&self, design: impl Into<Design>) -> usize {
        let design = design.into();
        let versions = self.pipeline().fits(&design, ShardingStrategy::WHOLE);
        self.layout.misfits_of(&self.strategies(), &design) + usize::from(versions.is_err())
    }
    /// The schedule of its stages.
    pub fn pipeline(&self) -> Pipeline {
        self.schedule.unwrap_or(self.layout.pipeline())
    }
    /// Returns the build context of a rank of this scheme, given the rank's context under the layout on the
    /// same device; `of` converts a strategy to one on that device.
    pub(crate) fn place<E: Kernels>(
        &self,
        at: BuildContext<'a, E>,
        of: impl Fn(&'a dyn AnyDeviceStrategy<D>) -> &'a dyn Strategy<E>,
    ) -> BuildContext<'a, E> {
        BuildContext { pipeline: self.pipeline(), ..at.with(self.others.iter().map(|other| of(*other))) }
    }
}

impl<D: Kernels> fmt::Display for Scheme<'_, D> {
    /// "tp=2", "tp=2 with my rows".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.layout)?;
        let names: Vec<_> = self.others().map(|about| about.name).collect();
        if names.is_empty() { Ok(()) } else { write!(f, " with {}", names.join(" and ")) }
    }
}
