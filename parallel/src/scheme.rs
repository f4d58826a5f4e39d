//! How a model is split: a layout, and what no list knows besides, such as a strategy or a schedule of another crate.
use crate::{At, Layout, Pipeline, Result, Schedule};
use kernels::{Kernels, Meta};
use layers::{About, Choice, Design, Strategy};
use std::fmt;

/// A strategy that builds its layers on a device, and on one without numbers, where they are priced. Every strategy that is
/// written for any device is one.
pub trait Anywhere<D: Kernels>: Strategy<D> + Strategy<Meta<D::Elem>> {}

impl<D: Kernels, S: Strategy<D> + Strategy<Meta<D::Elem>> + ?Sized> Anywhere<D> for S {}

/// A layout, and strategies and a schedule beside those that it names. A layout alone is one, by `into()`.
pub struct Scheme<'a, D: Kernels> {
    /// What splits the model by the lists.
    pub layout: &'a Layout,
    /// What splits its layers besides.
    pub others: &'a [&'a dyn Anywhere<D>],
    /// What takes the place of the layout's schedule of stages.
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
    /// The layout, where these strategies, too, build what they build.
    pub fn with(layout: &'a Layout, others: &'a [&'a dyn Anywhere<D>]) -> Self {
        Self { others, ..layout.into() }
    }
    /// The layout, whose stages are gone through as this schedule has it.
    pub fn scheduled(layout: &'a Layout, schedule: &'static dyn Schedule) -> Self {
        Self { schedule: Some(schedule.into()), ..layout.into() }
    }
    fn others(&self) -> impl Iterator<Item = &'static About> {
        let others = self.others.iter().map(|other| Strategy::<D>::about(*other));
        others.chain(self.schedule.map(|of| of.schedule.about()))
    }
    /// What is said of its strategies: the layout's first.
    pub fn strategies(&self) -> Vec<&'static About> {
        let replaced = |about: &&About| about.choice == Choice::Schedule && self.schedule.is_some();
        self.layout.strategies().into_iter().filter(|about| !replaced(about)).chain(self.others()).collect()
    }
    /// Whether the ranks of every axis can share a model.
    ///
    /// # Errors
    /// If an axis has ranks that do not divide what they share, with the numbers that do; if two strategies of the layout
    /// would build the same layer.
    pub fn fits(&self, design: impl Into<Design>) -> Result<()> {
        self.layout.fit_for(&self.strategies(), &design.into())
    }
    /// How many things of a model the ranks of their axes cannot share.
    pub fn misfits(&self, design: impl Into<Design>) -> usize {
        self.layout.misfits_of(&self.strategies(), &design.into())
    }
    /// Who goes through which of its chunks when.
    pub fn pipeline(&self) -> Pipeline {
        self.schedule.unwrap_or(self.layout.pipeline())
    }
    /// The place of one of its ranks, given that of one of the layout's on the same device; `of` is each strategy on that device.
    pub(crate) fn place<E: Kernels>(
        &self,
        at: At<'a, E>,
        of: impl Fn(&'a dyn Anywhere<D>) -> &'a dyn Strategy<E>,
    ) -> At<'a, E> {
        At { pipeline: self.pipeline(), ..at.with(self.others.iter().map(|other| of(*other))) }
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
