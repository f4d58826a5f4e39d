//! Errors between ranks. Ranks in messages are ranks of the world, unless a group is named.
use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;
use tensor::quoted::listing;

/// Error of a call between ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// Two ranks of a group met in different calls.
    #[error("ranks disagree: rank {rank} is in {mine}, rank {peer} in {theirs}")]
    Mismatch {
        /// This rank.
        rank: usize,
        /// This rank's call.
        mine: String,
        /// The other rank.
        peer: usize,
        /// The other rank's call.
        theirs: String,
    },
    /// Ranks wait for each other in a ring, this rank first, so none of them can go on.
    #[error("ranks wait for each other: {}", ring(waits))]
    Deadlock {
        /// Each rank and its call; each rank waits for the next, the last for the first.
        waits: Vec<(usize, String)>,
    },
    /// A rank failed: it returned an error or panicked.
    #[error("rank {rank} failed: {reason}")]
    Dead {
        /// Rank that failed.
        rank: usize,
        /// The rank's error or panic.
        reason: String,
    },
    /// A rank left a collective of this group early; no rank may enter another.
    #[error("rank {rank} left the group early: {reason}")]
    Broken {
        /// Rank that left.
        rank: usize,
        /// The rank's error.
        reason: String,
    },
    /// A rank finished without an error, and without making this call.
    #[error("rank {rank} has finished and will not enter {call}")]
    Finished {
        /// Rank that finished.
        rank: usize,
        /// This rank's call.
        call: String,
    },
    /// The time limit passed.
    #[error(
        "{} did not arrive within {limit:?} at {call}; {} did{}",
        named_ranks(missing),
        named_ranks(arrived),
        links(chain)
    )]
    Late {
        /// Ranks that did not arrive.
        missing: Vec<usize>,
        /// Ranks that arrived, this rank among them.
        arrived: Vec<usize>,
        /// This rank's call.
        call: String,
        /// Longest wait in one call.
        limit: Duration,
        /// Chain of waits from a missing rank: the waiting rank, the rank it waits for, and the call. Each
        /// link starts where the one before ends.
        chain: Vec<(usize, usize, String)>,
    },
    /// Two threads use one rank's membership of a group at the same time.
    #[error("rank {rank} is in two calls of one group at once: the second is {call}")]
    Busy {
        /// This rank.
        rank: usize,
        /// The second call.
        call: String,
    },
    /// A request was dropped, or its rank ended, before the rank waited for it.
    #[error("never waited for {call}")]
    Forgotten {
        /// Rank that started the request.
        rank: usize,
        /// Call that started the request.
        call: String,
    },
    /// Counts of rows, or a tensor, that do not fit the call.
    #[error("{call}: {why}")]
    BadCounts {
        /// The call.
        call: String,
        /// Value seen, and value wanted.
        why: String,
    },
    /// A rank, a size or a set of axes that does not fit the group or mesh.
    #[error("{why} (at {at})")]
    BadArgument {
        /// Value seen, and value wanted.
        why: String,
        /// Place of the call in the code.
        at: &'static Location<'static>,
    },
    /// Axis sizes or an axis order that make no world, or a rank that a world does not have.
    #[error("{0}")]
    BadWorld(String),
}

impl CommError {
    /// Makes a [`CommError::BadArgument`] at the caller's place.
    #[track_caller]
    pub(crate) fn bad_argument(why: String) -> Self {
        Self::BadArgument { why, at: Location::caller() }
    }
    /// Makes a [`CommError::BadCounts`]: counts, or a tensor, that do not fit a call.
    pub(crate) fn bad_counts(call: &impl Display, why: String) -> Self {
        Self::BadCounts { call: call.to_string(), why }
    }
}

/// Result of a call between ranks.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Formats ranks: `rank 3`, `ranks 0, 2 and 5`.
pub fn named_ranks(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".to_string(),
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", listing(ranks, "and")),
    }
}

/// Formats waits: `rank 0 in all_reduce …, rank 1 in …`.
fn ring(waits: &[(usize, String)]) -> String {
    let texts: Vec<_> = waits.iter().map(|(rank, call)| format!("rank {rank} in {call}")).collect();
    texts.join(", ")
}

/// Formats a chain: `; rank 1 waits for rank 2 in receive …`.
fn links(chain: &[(usize, usize, String)]) -> String {
    let text =
        |(rank, on, call): &(usize, usize, String)| format!("; rank {rank} waits for rank {on} in {call}");
    chain.iter().map(text).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn errors_are_sentences() {
        let late = CommError::Late {
            missing: vec![2],
            arrived: vec![0, 1, 3],
            call: "barrier".into(),
            limit: Duration::from_millis(1500),
            chain: vec![(2, 5, "a".into()), (5, 4, "b".into())],
        };
        let words = "rank 2 did not arrive within 1.5s at barrier; ranks 0, 1 and 3 did; \
                     rank 2 waits for rank 5 in a; rank 5 waits for rank 4 in b";
        assert_eq!(late.to_string(), words);
        let waits = vec![(0, "a".to_string()), (1, "b".to_string())];
        assert_eq!(
            CommError::Deadlock { waits }.to_string(),
            "ranks wait for each other: rank 0 in a, rank 1 in b"
        );
        assert_eq!((named_ranks(&[]), named_ranks(&[7])), ("no rank".to_string(), "rank 7".to_string()));
    }
}
