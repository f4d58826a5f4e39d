//! The work of a comparison.
use super::Partitioning;
use layers::OptimizerKind;
use models::digits::Digits;
use models::text::Corpus;
use models::{Model, TrainableModel};
use parallel::{Layout, Network};

/// A comparison to run.
pub struct Comparison<'a> {
    /// The model.
    pub model: &'a TrainableModel,
    /// Source of prompts and sequences; for a classifier, which does not generate text, its pictures.
    pub data: Data<'a>,
    /// Partitionings besides the unsplit one, which always comes first.
    pub ways: Vec<Partitioning>,
    /// True if training is compared, too.
    pub learns: bool,
    /// Network between the ranks of the timed runs; the checks run without it. In a trace each row is a run.
    pub network: Network,
    /// Number of microbatches of a training step.
    pub microbatches: usize,
    /// The optimizer of a training step.
    pub optimizer: OptimizerKind,
    /// Total seconds that each row is measured; 0 for one run.
    pub seconds: f64,
}

/// Data that the model reads and learns.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// A text.
    Text(&'a Model, &'a Corpus),
    /// Pictures.
    Digits(&'a Digits),
}

impl Comparison<'_> {
    /// The most data ranks of any layout.
    pub(super) fn data_ranks(&self) -> usize {
        self.ways.iter().map(|way| way.layout.tokens().data_ranks()).max().unwrap_or(1)
    }
    /// All ways, each once, an unsplit one first.
    pub(super) fn all_ways(&self) -> Vec<Partitioning> {
        let mut ways: Vec<Partitioning> = Vec::new();
        let first = self.ways.iter().all(|way| way.layout.ranks() > 1).then(|| Layout::default().into());
        for way in first.into_iter().chain(self.ways.iter().copied()) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }
}
