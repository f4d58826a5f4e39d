//! Ways to answer several requests.
use std::fmt;

/// Order in which the requests of a data rank are answered.
///
/// | name | requests in the stages | caches |
/// |---|---|---|
/// | `sync` | one, until it ends | of that request |
/// | `async` | one in each slot, in turns; waiting requests join a free slot | of every slot |
/// | `batch` | all at once, as one batch | of all requests |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestMode {
    /// One after the other.
    Sync,
    /// In slots that take turns, so that each stage can have a request of its own.
    Async {
        /// Number of slots of a data rank; `None`: two for each chunk of the pipeline.
        slots: Option<usize>,
    },
    /// All together.
    #[default]
    Batch,
}

impl RequestMode {
    /// Every mode, with the default number of slots.
    pub const ALL: [Self; 3] = [Self::Sync, Self::Async { slots: None }, Self::Batch];

    /// Name of the mode.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async { .. } => "async",
            Self::Batch => "batch",
        }
    }
    /// Number of slots for this number of requests of a data rank, under a pipeline of `chunks` chunks; 0 in
    /// modes without slots.
    pub(super) fn slots(self, chunks: usize, requests: usize) -> usize {
        let Self::Async { slots } = self else { return 0 };
        slots.unwrap_or(2 * chunks).min(requests)
    }
}

impl fmt::Display for RequestMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
