//! The largest batch that memory holds, by prices alone.
//!
//! ```text
//! batch size:     most n with need(n) ≤ room     n ≥ microbatches · data ranks
//! microbatches:   fewest m with need(m) ≤ room   m ≤ sequences / data ranks
//! ```
//! The number doubles until the answer changes, then the interval is halved: 2·log₂(n) prices. The need grows
//! with the sequences. It falls with the microbatches, except where ranks share sequences unevenly: the
//! answer fits in any case, and one microbatch fewer does not.
mod report;

pub use report::LargestBatch;

use super::Peak;
use crate::{Layout, Result};
use std::ops::RangeInclusive;

/// The number of a step that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The most sequences, in a given number of microbatches.
    BatchSize,
    /// The fewest microbatches of a given number of sequences.
    Microbatches,
}

impl Unknown {
    /// Returns the number that has room everywhere, of the numbers that have room on each machine.
    pub fn of_all(self, numbers: impl IntoIterator<Item = usize>) -> Option<usize> {
        match self {
            Self::BatchSize => numbers.into_iter().min(),
            Self::Microbatches => numbers.into_iter().max(),
        }
    }
    /// Returns the sequences and microbatches of a step with `n` in the place of the unknown number.
    #[must_use]
    pub fn with(self, n: usize, [sequences, microbatches]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::BatchSize => [n, microbatches],
            Self::Microbatches => [sequences, n],
        }
    }
}

/// A search for the largest batch.
pub struct Search<'a> {
    /// Layout; its memory limit bounds the peak of each rank.
    pub layout: &'a Layout,
    /// Bytes that all ranks together may hold, if they are bounded.
    pub room: Option<u128>,
    /// The number to find.
    pub unknown: Unknown,
    /// Sequences and microbatches of a step: the given number, and the most sequences if they are unknown.
    pub numbers: [usize; 2],
    /// Price of a step of a layout, with these numbers of sequences and microbatches.
    pub peak: &'a dyn Fn(&Layout, [usize; 2]) -> Result<Peak>,
}

impl Search<'_> {
    /// Returns the unknown number. If no number has room, returns that of the step that needs the least.
    ///
    /// # Errors
    /// If no number is within the layout's limit: the smallest limit that works. If a price fails.
    pub fn find(&self) -> Result<usize> {
        let data = self.layout.tokens().data_ranks();
        let unlimited = self.layout.limited(None);
        let peak = |layout, n| (self.peak)(layout, self.unknown.with(n, self.numbers));
        let has_room = |n| {
            let Peak { all, largest, .. } = peak(&unlimited, n)?;
            let limit = self.layout.memory_limit();
            Ok(limit.is_none_or(|limit| largest.total <= limit) && self.room.is_none_or(|room| all <= room))
        };
        let [sequences, microbatches] = self.numbers;
        let smallest = match self.unknown {
            Unknown::BatchSize => {
                let least = microbatches.saturating_mul(data);
                match first(least..=sequences, |n| has_room(n).map(|has| !has))? {
                    Some(more) if more > least => return Ok(more - 1),
                    Some(_) => least,
                    None => return Ok(sequences),
                }
            }
            Unknown::Microbatches => {
                let most = (sequences / data).max(1);
                if let Some(fewest) = first(1..=most, has_room)? {
                    return Ok(fewest);
                }
                let need = |n| peak(&unlimited, n).map(|peak| peak.largest.total);
                if need(1)? < need(most)? { 1 } else { most }
            }
        };
        peak(self.layout, smallest).map(|_| smallest)
    }
}

/// Returns the first number of a range for which `is` is true, if it is false before and true from there on.
fn first(range: RangeInclusive<usize>, mut is: impl FnMut(usize) -> Result<bool>) -> Result<Option<usize>> {
    let (mut below, last) = range.into_inner();
    let mut found = below;
    while !is(found)? {
        if found >= last {
            return Ok(None);
        }
        (below, found) = (found, found.saturating_mul(2).min(last));
    }
    while found - below > 1 {
        let middle = below.midpoint(found);
        *if is(middle)? { &mut found } else { &mut below } = middle;
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests;
