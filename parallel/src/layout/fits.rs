//! Checks that a layout's ranks can share a model, and that its strategies can build it.
use super::misfit::{either, misfit};
use super::{Layout, grammar_of_all};
use crate::pipeline::{self, Pipeline};
use crate::{Error, Result, strategies};
use ::tensor::Cpu;
use ::tensor::count::Overflow;
use comm::Axis;
use layers::{Choice, Design, NumberArgument, Shape, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule, RandomValues};

impl Layout {
    /// Checks that the ranks of every axis can share a model.
    ///
    /// # Errors
    /// If the ranks of an axis do not divide what they share, with the numbers of ranks that do; if two
    /// strategies would build the same layer.
    pub fn fits(&self, design: impl Into<Design>) -> Result<()> {
        let design = design.into();
        self.fit_for(&self.strategies(), &design)?;
        self.pipeline().fits(&design, self.rests()).map_err(Error::new)
    }
    /// Checks that the layout fits, if these strategies split the model.
    pub(crate) fn fit_for(&self, strategies: &[&StrategyInfo], design: &Design) -> Result<()> {
        for (axis, ranks) in self.axes() {
            let shared = |ranks| self.shared(strategies, (axis, ranks), design);
            let bad: Vec<_> = shared(ranks)
                .iter()
                .filter(|s| !s.fits())
                .map(|s| match (s.size, s.by) {
                    (0, _) => format!("a model without {}", s.what),
                    (n, DivisionRule::AtLeastOne) if s.over != ranks => {
                        format!("{n} {} in {} chunks", s.what, s.over)
                    }
                    (1, _) => format!("1 {}", s.what.strip_suffix('s').unwrap_or(s.what)),
                    (n, _) => format!("{n} {}", s.what),
                })
                .collect();
            if !bad.is_empty() {
                let alone = |about: &StrategyInfo, number| {
                    (about.shares)(design, &Sizes { ranks: self.sizes, number }).iter().all(DividedSize::fits)
                };
                let is_why = |about: &StrategyInfo| {
                    let is_method = about.axis == Some(axis) && about.choice != Choice::Layers;
                    let is_taken = strategies.iter().any(|taken| std::ptr::eq(*taken, about));
                    is_method && is_taken && !alone(about, self.number(about))
                };
                let method = grammar_of_all().named(self).into_iter().find(|(about, _)| is_why(about));
                let is_other = |other: &StrategyInfo| {
                    let alike = |of: &StrategyInfo| (other.axis, other.choice) == (of.axis, of.choice);
                    let is_whole = !matches!(other.takes, NumberArgument::Percent(_)); // without a number
                    method.as_ref().is_some_and(|(about, _)| alike(about)) && is_whole && alone(other, None)
                };
                let keeps = |other: &StrategyInfo| {
                    pipeline::ALL.iter().find(|of| std::ptr::eq(of.about(), other)).is_none_or(|&schedule| {
                        Pipeline { schedule, ..Pipeline::ALONE }.fits(design, self.rests()).is_ok()
                    })
                };
                let others: Vec<_> = strategies::all()
                    .iter()
                    .filter(|other| is_other(other) && keeps(other))
                    .map(|other| other.word)
                    .collect();
                let least = if method.is_some() { 2 } else { 1 }; // one rank has no methods
                let possible = self.possible(axis, |n| n >= least && shared(n).iter().all(DividedSize::fits));
                let method = method.as_ref().map(|(_, written)| &**written);
                return Err(misfit((axis, ranks), (method, &others), &either(&bad, "and"), &possible));
            }
        }
        self.conflict(design).map_or(Ok(()), |why| Err(Error::new(why)))
    }
    /// Returns the reason why its strategies cannot build such a model, if there is one: two would build the
    /// same layer, or one would build a tied table.
    pub fn conflict(&self, design: impl Into<Design>) -> Option<String> {
        if self.strategies().iter().filter(|about| about.choice == Choice::Layers).count() < 2 {
            return None; // no strategy but the axis itself
        }
        let device = kernels::meta_of::<Cpu<f32>>();
        let mesh = self.ghost(0).ok()?;
        let at = self.place(&device, &mesh, &RandomValues { seed: 0 });
        let design = design.into();
        let one_of_each = design.shape().map_or_else(Vec::new, Shape::first_of_kinds);
        let design = design.of_blocks(&one_of_each);
        let run = 0..design.parts(self.size(Axis::Tp));
        let built = Overflow::caught(|| design.stage(&at, &[run], None).map(drop)).ok()?;
        built.err().filter(|why| matches!(why, ops::Error::Strategies(_))).map(|why| why.to_string())
    }
    /// Returns the number of quantities of a model that the ranks of their axes cannot share, if these
    /// strategies split it.
    pub(crate) fn misfits_of(&self, strategies: &[&StrategyInfo], design: &Design) -> usize {
        let of = |of| self.shared(strategies, of, design).iter().filter(|s| !s.fits()).count();
        self.axes().into_iter().map(of).sum()
    }
    /// Returns the quantities of a model that the ranks of an axis share under these strategies, if there are
    /// `ranks` ranks.
    fn shared(
        &self,
        strategies: &[&StrategyInfo],
        (axis, ranks): (Axis, usize),
        design: &Design,
    ) -> Vec<DividedSize> {
        let mut sizes = self.sizes;
        sizes[axis as usize] = ranks;
        let along = strategies.iter().filter(|about| about.axis == Some(axis));
        let sizes = |about: &StrategyInfo| Sizes { ranks: sizes, number: self.number(about) };
        along.flat_map(|about| (about.shares)(design, &sizes(about))).collect()
    }
}
