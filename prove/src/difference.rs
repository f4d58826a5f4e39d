//! First tensor that differs, and its context.
use comm::CallRecord;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The first tensor, in program order, that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the tensor, with the step.
    pub name: String,
    /// First rank on which it differs.
    pub rank: usize,
    /// Number of its elements that differ.
    pub differ: usize,
    /// Number of its elements.
    pub of: usize,
    /// All ranks on which it differs.
    pub ranks: Vec<usize>,
    /// The tensor before it, which is equal; `None` if it is the first.
    pub after: Option<String>,
    /// Calls of that rank that touched it since then, with their source locations.
    #[serde(serialize_with = "sentences", skip_deserializing)]
    pub collectives: Vec<CallRecord>,
    /// Hint of a strategy: the place to look first.
    pub hint: Option<String>,
}

fn sentences<S: Serializer>(calls: &[CallRecord], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(calls.iter().map(|call| &call.words))
}

impl Difference {
    /// Creates a difference without its context.
    pub(super) fn of(name: String, rank: usize, differ: usize, of: usize) -> Self {
        Self { name, rank, differ, of, ranks: vec![rank], after: None, collectives: Vec::new(), hint: None }
    }
}

impl fmt::Display for Difference {
    /// Writes the difference, the last equal tensor, the calls since then, and the hint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { name, rank, differ, of, ranks, after, collectives, hint } = self;
        write!(
            f,
            "the first tensor that differs is \"{name}\", rank {rank}: {differ} of {of} elements differ"
        )?;
        let others: Vec<_> = ranks.iter().filter(|r| *r != rank).map(usize::to_string).collect();
        if !others.is_empty() {
            let s = if others.len() > 1 { "s" } else { "" };
            write!(f, "; it also differs on rank{s} {}", others.join(", "))?;
        }
        f.write_str(".")?;
        if let Some(after) = after {
            write!(f, "\nThe last equal tensor: \"{after}\".")?;
            if collectives.is_empty() {
                write!(f, "\nNo collective touched it since then.")?;
            }
            for call in collectives {
                write!(f, "\nSince then: {call}.")?;
            }
        }
        if let Some(hint) = hint {
            write!(f, "\nLook first at {hint}.")?;
        }
        Ok(())
    }
}
