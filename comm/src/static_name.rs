//! Names that are read from other processes and kept for the life of this one.
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A name with static lifetime. The alias hides the reference from serde, which would otherwise borrow the
/// name from its input.
pub(crate) type StaticName = &'static str;

/// Reads the name of a message kind or of a dtype, and keeps it. A program has few names; more than 256, or
/// one longer than 256 bytes, is an invalid frame.
pub(crate) fn lasting<'a, D: Deserializer<'a>>(from: D) -> Result<StaticName, D::Error> {
    static KNOWN: Mutex<BTreeSet<StaticName>> = Mutex::new(BTreeSet::new());
    const MOST: usize = 256;
    let text = String::deserialize(from)?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(&*text) {
        return Ok(text);
    }
    if known.len() == MOST || text.len() > MOST {
        return Err(D::Error::custom("more than 256 names, or a name of more than 256 bytes"));
    }
    known.insert(text.clone().leak());
    Ok(known.get(&*text).expect("put there"))
}
