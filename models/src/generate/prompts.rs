//! Prompts to continue, and how they are dealt.
use super::requests::RequestMode;
use crate::sampling::Sampling;
use std::ops::Range;

/// Request: prompts to continue, and how.
#[derive(Clone, Debug, Default)]
pub struct Prompts {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Number of tokens to add to each.
    pub max_new: usize,
    /// Method of choosing the next token.
    pub sampling: Sampling,
    /// True if inputs and outputs of layers, and the weights, are recorded for a dump.
    pub record: bool,
    /// Order in which requests are answered.
    pub requests: RequestMode,
}

impl Prompts {
    /// Number of a row's first logits that are read for a new token. `None`: all of them, or no new token is
    /// wanted.
    pub(super) fn first(&self, vocabulary: usize) -> Option<usize> {
        (self.max_new > 0).then(|| self.sampling.needs(vocabulary)).flatten()
    }
    /// Number of positions of the longest text of a rank with prompts of these lengths; 0 for a rank without
    /// prompts.
    pub(super) fn positions(&self, lengths: &[usize]) -> usize {
        lengths.iter().max().map_or(0, |longest| longest + self.max_new)
    }
    /// Lengths of these prompts.
    pub(super) fn lengths(&self, of: Range<usize>) -> Vec<usize> {
        self.prompts[of].iter().map(Vec::len).collect()
    }
    /// Most requests of any data rank.
    pub(super) fn most_requests(&self, data_ranks: usize) -> usize {
        self.prompts.len().div_ceil(data_ranks)
    }
    /// The batches in which a data rank answers its requests `mine`: one, or one for each request. Ranks that
    /// work together have the same number of batches.
    pub(super) fn batches(
        &self,
        mine: Range<usize>,
        data_ranks: usize,
        together: bool,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let requests = if together { self.most_requests(data_ranks) } else { mine.len() };
        let (n, each) = if self.requests == RequestMode::Sync { (requests, 1) } else { (1, mine.len()) };
        let begin = move |i: usize| (mine.start + i * each).min(mine.end);
        (0..n).map(move |i| begin(i)..begin(i + 1))
    }
}
