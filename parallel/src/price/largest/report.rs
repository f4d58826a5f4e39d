//! Report on the largest batch: the need of the rank that holds the most, and layouts that need less.
use super::Search;
use crate::price::Peak;
use crate::{Layout, Result, strategies};
use layers::{Design, StrategyInfo, counted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use tensor::{Category, readable};

/// Report on the largest batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LargestBatch {
    /// The layout.
    pub layout: String,
    /// Sequences of the step.
    pub batch_size: usize,
    /// Microbatches of the step.
    pub microbatches: usize,
    /// Rank that holds the most.
    pub rank: usize,
    /// Peak bytes of that rank.
    pub peak_bytes: usize,
    /// Its largest category of memory.
    pub category: &'static str,
    /// Peak bytes of that category.
    pub category_bytes: usize,
    /// Layouts with one more strategy that saves memory, each with the bytes less that the largest rank would
    /// hold; 0 if it holds as much or more.
    pub frees: BTreeMap<String, usize>,
}

impl Search<'_> {
    /// Reports on a step with `n` in the place of the unknown number.
    ///
    /// # Errors
    /// If a price fails.
    pub fn report(&self, n: usize, design: &Design) -> Result<LargestBatch> {
        let numbers @ [batch_size, microbatches] = self.unknown.with(n, self.numbers);
        let peak = |layout: &Layout| (self.peak)(&layout.limited(None), numbers);
        let Peak { rank, largest, .. } = peak(self.layout)?;
        let bytes = |category: &Category| largest.category[*category as usize];
        let category = Category::ALL.iter().copied().max_by_key(bytes).unwrap_or(Category::Buffers);
        let taken = self.layout.strategies();
        let is_other = |about: &&StrategyInfo| {
            about.choice.is_of_memory() && !taken.iter().any(|other| std::ptr::eq(*other, *about))
        };
        let others = strategies::all().iter().copied().filter(is_other);
        let others = others.filter_map(|about| self.layout.with_instead(about).ok());
        // pinned memory of the host frees as much as a file
        let frees = others
            .filter(|other| other.offload().is_none_or(|offload| !offload.pinned))
            .filter(|other| other.fits(design).is_ok())
            .map(|other| Ok((other.to_string(), largest.total.saturating_sub(peak(&other)?.largest.total))));
        Ok(LargestBatch {
            layout: self.layout.to_string(),
            batch_size,
            microbatches,
            rank,
            peak_bytes: largest.total,
            category: category.name(),
            category_bytes: bytes(&category),
            frees: frees.collect::<Result<_>>()?,
        })
    }
}

impl fmt::Display for LargestBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch_size, microbatches, rank, peak_bytes, category, category_bytes, frees, .. } = self;
        let [peak, most] = [peak_bytes, category_bytes].map(|bytes| readable(*bytes as u128));
        write!(f, "{} in {}: ", counted(*batch_size, "sequence"), counted(*microbatches, "microbatch"))?;
        write!(f, "rank {rank} holds the most, {peak}; its largest category is {category}, {most}")?;
        for (layout, bytes) in frees.iter().filter(|(_, bytes)| **bytes > 0) {
            write!(f, "\n  {layout} would free {} of it", readable(*bytes as u128))?;
        }
        Ok(())
    }
}
