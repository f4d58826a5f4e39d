//! Counts that layers report, such as how many tokens chose each expert.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts by layer. For experts: the number of copies of tokens routed to each, before any is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerCounts(BTreeMap<String, Vec<usize>>);

impl LayerCounts {
    /// Adds to a layer's counts.
    pub fn add(&mut self, layer: &str, counts: &[usize]) {
        match self.0.get_mut(layer) {
            Some(sum) => sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            None => drop(self.0.insert(layer.to_owned(), counts.to_vec())),
        }
    }
    /// Adds all counts of `other`.
    pub fn join(&mut self, other: Self) {
        other.iter().for_each(|(layer, counts)| self.add(layer, counts));
    }
    /// Returns whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Returns a layer's counts.
    #[must_use]
    pub fn of(&self, layer: &str) -> Option<&[usize]> {
        self.0.get(layer).map(Vec::as_slice)
    }
    /// Iterates over the layers and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.0.iter().map(|(layer, counts)| (&**layer, &**counts))
    }
}

impl FromIterator<Self> for LayerCounts {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|loads| sum.join(loads));
        sum
    }
}
