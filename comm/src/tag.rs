//! Tags name what messages carry, so that one is not taken for another of the same shape.
use crate::static_name::{StaticName, lasting};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Content of a message: its kind, and its unit, such as a microbatch. Displays as `activation of 3`.
/// Messages of one kind from one rank to another arrive in order, and may overtake those of other kinds. The
/// first message of a kind must have the unit that the receiver asks for; otherwise both ranks get an error
/// ([`CommError::Mismatch`](crate::CommError)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// Kind: `activation`, `gradient`.
    #[serde(deserialize_with = "lasting")]
    pub what: StaticName,
    /// Index of the unit: a microbatch, a block of keys.
    pub unit: usize,
}

impl Tag {
    /// Makes a tag of this kind and unit.
    pub const fn new(what: &'static str, unit: usize) -> Self {
        Self { what, unit }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.what, self.unit)
    }
}

/// Tag for tests in which all messages carry the same.
#[cfg(test)]
pub(crate) const TAG: Tag = Tag::new("x", 0);
