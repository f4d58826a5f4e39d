//! All-reduces, one file each, as schedules for any number of ranks.
//!
//! A new one is one file, with `schedule(ranks)`, and one line in the list below (beside its `mod`).
//!
//! ```
//! use comm::{Algorithm, Arrival};
//!
//! let schedule = Algorithm::Ring.schedule(4)?;
//! let first = &schedule.steps()[0].transfers[3];
//! assert_eq!((first.from, first.to, first.chunks.clone(), first.how), (3, 0, 3..4, Arrival::Add));
//! assert_eq!(schedule.time(&"1us,1GB/s".parse()?, 4, 1000).as_micros(), 6 * (1 + 1)); // 2(n−1)·(α + N/n·β)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod direct;
mod hierarchical;
mod naive;
#[cfg(test)]
mod proof;
mod ring;
mod tree;

use crate::error::sizes;
use crate::{CommError, CommSchedule, Link, Result};
use std::fmt;
use std::time::Duration;

macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident $({ $node:ident })? = $text:literal in $file:ident,)*) => {
        /// An all-reduce: at its end every rank has, in every chunk, the sum over all ranks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Algorithm { $($(#[$doc])* $variant $({
            /// Ranks of a node, which are consecutive; it divides the number of ranks.
            $node: usize,
        })?,)* }

        impl Algorithm {
            /// The names, in the order of every report.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];
            /// All of them, in the order of every report, for nodes of so many ranks.
            pub fn all(node: usize) -> Vec<Self> {
                vec![$(Self::$variant $({ $node: node })?,)*]
            }
            /// The name in messages and reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant { .. } => $text,)* }
            }
            /// Ranks of a node, if that is anything to it.
            pub fn node(self) -> Option<usize> {
                match self { $(Self::$variant $({ $node })? => [$($node)?].first().copied(),)* }
            }
            /// The schedule of so many ranks that fit.
            fn planned(self, ranks: usize) -> CommSchedule {
                match self { $(Self::$variant $({ $node })? => $file::schedule(ranks $(, $node)?),)* }
            }
        }
    };
}

algorithms! {
    /// Everything to rank 0, and back.
    Naive = "naive" in naive,
    /// Each rank adds its chunk of all ranks' in rank order: the bits of a sum that goes directly.
    Direct = "direct" in direct,
    /// Chunks around a ring, twice.
    Ring = "ring" in ring,
    /// Recursive halving, recursive doubling.
    Tree = "tree" in tree,
    /// Rings inside nodes, and across them.
    Hierarchical { node } = "hierarchical" in hierarchical,
}

/// Ranks of the largest schedule, which lists some two million messages: as many as a world of threads may have.
const MOST_RANKS: usize = 1024;

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.node().map_or(Ok(()), |node| write!(f, " (nodes of {node})"))
    }
}

impl Algorithm {
    /// The one of this name, for nodes of so many ranks.
    pub fn named(name: &str, node: usize) -> Option<Self> {
        Self::all(node).into_iter().find(|algorithm| algorithm.name() == name)
    }
    /// Who sends what to whom when, among so many ranks. It lists up to `2·ranks²` messages.
    ///
    /// # Errors
    /// [`CommError::BadSchedule`] if there are no ranks or too many, or a node's size does not divide their number.
    pub fn schedule(self, ranks: usize) -> Result<CommSchedule> {
        let why = match (ranks, self.node()) {
            (0, _) => "0 ranks have nothing to reduce: there must be 1 or more".to_string(),
            _ if ranks > MOST_RANKS => {
                format!(
                    "{ranks} ranks are more than an algorithm lists the messages of: there may be {MOST_RANKS}"
                )
            }
            (_, Some(node)) if !ranks.is_multiple_of(node) => {
                format!(
                    "{ranks} ranks are not made of nodes of {node}: a node's size must be {}",
                    sizes(ranks)
                )
            }
            _ => return Ok(self.planned(ranks)),
        };
        Err(CommError::BadSchedule(why))
    }
}

/// What no all-reduce of `elements` elements of each of so many ranks can take less than, over links of this kind: the
/// larger of `⌈log2 n⌉·α`, since in a step at most twice as many ranks know of an element, and `⌈2(n−1)·N/n⌉·β`, since
/// each element costs n−1 messages before its sum is known and n−1 after, and some rank sends the mean.
///
/// Source: Patarasuk and Yuan, 2009, §3; Thakur, Rabenseifner, Gropp, 2005, §3.
pub fn bound(ranks: usize, link: &Link, bytes_per_element: usize, elements: usize) -> Duration {
    let steps = ranks.max(1).next_power_of_two().ilog2();
    let mean = (2 * ranks.saturating_sub(1) as u128 * elements as u128).div_ceil(ranks.max(1) as u128);
    let bytes = usize::try_from(mean.saturating_mul(bytes_per_element as u128)).unwrap_or(usize::MAX);
    let moving = link.moving(bytes);
    link.latency().saturating_mul(steps).max(moving)
}
