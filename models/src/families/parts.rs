//! Parts of a configuration that few families have.
use crate::config::{ConfigKeys, KeyValue};
use layers::Shape;
use parallel::Result;
use serde_json::Value;

/// Keys that few families have, and functions that read and write them.
pub(super) struct ShapeKeys {
    /// Keys that are read, separated by spaces.
    pub(super) read_keys: &'static str,
    /// Gives a shape what the keys say.
    pub(super) read: fn(&ConfigKeys<'_>, &mut Shape) -> Result<()>,
    /// Returns the keys from which both versions of `transformers` read the same.
    pub(super) keys: fn(&Shape) -> Vec<KeyValue>,
}

/// Numbers that files have in fewer bits: a plan or a price does not read them. Weights are refused.
pub(super) const QUANTIZED: ShapeKeys = ShapeKeys {
    read_keys: "quantization_config",
    read: |keys, _| {
        let known = |value: &Value| ["fp8", "mxfp4"].iter().any(|kind| value["quant_method"] == *kind);
        let wanted = "an object whose quant_method is \"fp8\" or \"mxfp4\", or left out";
        keys.read("quantization_config", wanted, |value| known(value).then_some(()))?;
        Ok(())
    },
    keys: |_| vec![],
};
