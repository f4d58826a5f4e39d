//! Parts of a configuration that few families have.
use crate::config::{ConfigKeys, KeyValue};
use layers::Shape;
use parallel::Result;

/// Keys that few families have, and functions that read and write them.
pub(super) struct ShapeKeys {
    /// Keys that are read, separated by spaces.
    pub(super) read_keys: &'static str,
    /// Gives a shape what the keys say.
    pub(super) read: fn(&ConfigKeys<'_>, &mut Shape) -> Result<()>,
    /// Returns the keys from which both versions of `transformers` read the same.
    pub(super) keys: fn(&Shape) -> Vec<KeyValue>,
}
