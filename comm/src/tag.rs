//! What a message carries: so that one thing is not taken for another of the same shape.
use crate::lasting::{Lasting, lasting};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a message carries: of what kind it is, and of which unit, such as a microbatch. Reads `activation of 3`. Messages of
/// a kind from one rank to another arrive in order, and pass those of other kinds. The first is received by who asks for its
/// unit; otherwise both sides get an error ([`CommError::Mismatch`](crate::CommError)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// The kind: `activation`, `gradient`.
    #[serde(deserialize_with = "lasting")]
    pub what: Lasting,
    /// Which one of these: a microbatch, a block of keys.
    pub unit: usize,
}

impl Tag {
    /// This kind, of this unit.
    pub const fn new(what: &'static str, unit: usize) -> Self {
        Self { what, unit }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.what, self.unit)
    }
}

/// For tests in which all messages carry the same.
#[cfg(test)]
pub(crate) const TAG: Tag = Tag::new("x", 0);
