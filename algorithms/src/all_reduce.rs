//! All-reduce algorithms, one file each, as schedules for any number of ranks.
//!
//! To add one, write a file with `schedule(ranks)`, its `mod`, and a line in the list below.
//!
//! ```
//! use algorithms::{Algorithm, Arrival};
//!
//! let schedule = Algorithm::Ring.schedule(4)?;
//! let first = &schedule.rounds()[0].transfers[3];
//! assert_eq!((first.from, first.to, first.chunks.clone(), first.how), (3, 0, 3..4, Arrival::Add));
//! assert_eq!(schedule.time(&"1us,1GB/s".parse()?, 4, 1000).as_micros(), 6 * (1 + 1)); // 2(n−1)·(α + N/n·β)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod direct;
mod hierarchical;
mod naive;
#[cfg(test)]
#[path = "tests/proof.rs"]
mod proof;
mod ring;
mod tree;

use crate::{CommSchedule, Link};
use std::fmt;
use std::time::Duration;
use tensor::quoted::sizes;

/// Reason, in one sentence, why so many ranks have no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSchedule(String);

macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident $({ $node:ident })? = $text:literal in $file:ident,)*) => {
        /// An all-reduce algorithm: at its end every rank has, in every chunk, the sum over all ranks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Algorithm { $($(#[$doc])* $variant $({
            /// Ranks per node. Ranks of a node are consecutive; the size divides the number of ranks.
            $node: usize,
        })?,)* }

        impl Algorithm {
            /// The names, in the order of every report.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];
            /// Returns all algorithms, in the order of every report, for nodes of `node` ranks.
            pub fn all(node: usize) -> Vec<Self> {
                vec![$(Self::$variant $({ $node: node })?,)*]
            }
            /// The name in messages and reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant { .. } => $text,)* }
            }
            /// Ranks per node, if the algorithm uses nodes.
            pub fn node(self) -> Option<usize> {
                match self { $(Self::$variant $({ $node })? => [$($node)?].first().copied(),)* }
            }
            /// Returns the schedule; `ranks` has been checked.
            fn planned(self, ranks: usize) -> CommSchedule {
                match self { $(Self::$variant $({ $node })? => $file::schedule(ranks $(, $node)?),)* }
            }
        }
    };
}

algorithms! {
    /// Sends everything to rank 0, and the sum back.
    Naive = "naive" in naive,
    /// Each rank adds up its chunk of all ranks, in rank order: the same bits as one sum in rank order.
    Direct = "direct" in direct,
    /// Passes chunks around a ring, twice.
    Ring = "ring" in ring,
    /// Recursive halving, then recursive doubling.
    Tree = "tree" in tree,
    /// Rings inside nodes, and rings across nodes.
    Hierarchical { node } = "hierarchical" in hierarchical,
}

/// Most ranks of a schedule, which then lists about two million messages. A world of threads has the same
/// limit.
const MOST_RANKS: usize = 1024;

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.node().map_or(Ok(()), |node| write!(f, " (nodes of {node})"))
    }
}

impl Algorithm {
    /// Returns the algorithm with this name, for nodes of `node` ranks.
    pub fn named(name: &str, node: usize) -> Option<Self> {
        Self::all(node).into_iter().find(|algorithm| algorithm.name() == name)
    }
    /// Returns the schedule of `ranks` ranks: every message, round by round; up to `2·ranks²` messages.
    ///
    /// # Errors
    /// If `ranks` is 0 or above 1024, or is not a multiple of the node size.
    pub fn schedule(self, ranks: usize) -> Result<CommSchedule, NoSchedule> {
        let why = match (ranks, self.node()) {
            (0, _) => "an all-reduce needs 1 rank or more, not 0".to_string(),
            _ if ranks > MOST_RANKS => {
                format!("{ranks} ranks are too many for a schedule: there may be at most {MOST_RANKS}")
            }
            (_, Some(node)) if !ranks.is_multiple_of(node) => {
                format!("{ranks} ranks cannot form nodes of {node}: a node's size must be {}", sizes(ranks))
            }
            _ => return Ok(self.planned(ranks)),
        };
        Err(NoSchedule(why))
    }
}

/// Lower bound on the time of any all-reduce of `elements` elements per rank over links of this kind: the
/// larger of `⌈log2 n⌉·α` and `⌈2(n−1)·N/n⌉·β`. The first term holds because one round at most doubles the
/// number of ranks that an element has reached. The second holds because each element takes n−1 messages
/// before its sum is known and n−1 after, and some rank sends at least the mean.
///
/// Source: Patarasuk and Yuan, 2009, §3; Thakur, Rabenseifner, Gropp, 2005, §3.
pub fn bound(ranks: usize, link: &Link, bytes_per_element: usize, elements: usize) -> Duration {
    let mean = (2 * ranks.saturating_sub(1) as u128 * elements as u128).div_ceil(ranks.max(1) as u128);
    let bytes = usize::try_from(mean.saturating_mul(bytes_per_element as u128)).unwrap_or(usize::MAX);
    link.latency().saturating_mul(ranks.max(1).next_power_of_two().ilog2()).max(link.moving(bytes))
}
