//! Names that are read from other processes, and last.
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// A text that lasts. By this name, a text that is read need not lie in what it is read from.
pub(crate) type Lasting = &'static str;

/// Reads a text that lasts: the name of a kind of message or number. A program has few; more than that is no frame.
pub(crate) fn lasting<'a, D: Deserializer<'a>>(from: D) -> Result<Lasting, D::Error> {
    static KNOWN: Mutex<BTreeSet<Lasting>> = Mutex::new(BTreeSet::new());
    const MOST: usize = 256;
    let (text, mut known) =
        (String::deserialize(from)?, KNOWN.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(text) = known.get(&*text) {
        return Ok(text);
    }
    if known.len() == MOST || text.len() > MOST {
        return Err(D::Error::custom("no program has so many names, or such long ones"));
    }
    known.insert(text.clone().leak());
    Ok(known.get(&*text).expect("put there"))
}
