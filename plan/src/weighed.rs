//! Layouts that a search has weighed, and the measure by which one is the best.
use crate::step::StepTime;
use parallel::Layout;

/// Measure of the best layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The shortest step.
    Time,
    /// The least memory of the fullest rank.
    Memory,
    /// The same, of one layout: a search for it ends sooner.
    Least,
}

/// A layout that was weighed, in microbatches.
#[derive(Clone, Debug)]
pub struct Weighed {
    /// The layout.
    pub layout: Layout,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// Time and memory of a step.
    pub step: StepTime,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchResult {
    /// The best layouts, the best first.
    pub best: Vec<Weighed>,
    /// Number of layouts that were weighed.
    pub weighed: usize,
    /// Number of layouts whose bounds were enough.
    pub bounded: usize,
    /// Number of weighed layouts that do not fit into memory, or not at all.
    pub refused: usize,
    /// If nothing fits, the layout that holds the least, or held the least so far if the search was cut.
    pub least: Option<Weighed>,
    /// True if entries were tried that only save memory.
    pub needed: bool,
    /// True if the search was cut: better layouts may exist.
    pub cut: bool,
}

impl SearchResult {
    /// Adds the numbers of layouts of another search.
    pub(crate) fn count(&mut self, other: &Self) {
        self.weighed += other.weighed;
        self.bounded += other.bounded;
        self.refused += other.refused;
        self.cut |= other.cut;
    }
}
