//! Sliding windows: the size is in `sliding_window`, in all families; the blocks that have it are not.
use crate::config::{ConfigKeys, KeyValue};
use layers::{Blocks, Shape, Window};
use parallel::{Error, Result};
use serde_json::{Value, json};

const SIZE_KEY: &str = "sliding_window";
/// Default of `sliding_window`, in both versions of `transformers` and for all models that read the key.
const SIZE: usize = 4096;
/// Default of `max_window_layers`.
const FROM: usize = 28;
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Functions that read and write the keys of windows.
pub(super) struct WindowKeys {
    /// Keys that are read, separated by spaces.
    pub(super) read_keys: &'static str,
    /// Gives a shape its window, and the blocks without it.
    pub(super) read: fn(&ConfigKeys<'_>, &mut Shape) -> Result<()>,
    /// Returns the keys from which both versions of `transformers` give the window to these blocks.
    pub(super) keys: fn(&Shape) -> Vec<KeyValue>,
}

/// No window and no key.
pub(super) const NONE: WindowKeys = WindowKeys { read_keys: "", read: |_, _| Ok(()), keys: |_| vec![] };
/// A window in every block. A missing key means the default.
pub(super) const EVERY_BLOCK: WindowKeys = WindowKeys {
    read_keys: SIZE_KEY,
    read: |keys, shape| {
        shape.window = keys.window_size()?.map(|size| Window { size, sinks: 0 });
        Ok(())
    },
    keys: |shape| vec![size(shape)],
};
/// A window in the later blocks, if `use_sliding_window` is true: those that `layer_types` lists, or those
/// from `max_window_layers` on.
pub(super) const LATER_BLOCKS: WindowKeys = WindowKeys {
    read_keys: "layer_types max_window_layers sliding_window use_sliding_window",
    read: |keys, shape| {
        let blocks = shape.blocks;
        let used = keys.flag("use_sliding_window", false)?;
        let size = keys.window_size()?.filter(|_| used);
        let from = match keys.first_sliding(blocks)? {
            Some(from) if from < blocks && size.is_none() => return Err(keys.no_window(used)),
            Some(from) => from,
            None => keys.count("max_window_layers", FROM)?,
        };
        shape.window = size.filter(|_| from < blocks).map(|size| Window { size, sinks: 0 });
        if shape.window.is_some() && from > 0 && blocks > Blocks::MOST {
            let wanted = format!("at most {} in a model with a window in some blocks", Blocks::MOST);
            return Err(keys.wrong("num_hidden_layers", &json!(blocks), &wanted));
        }
        if shape.window.is_some() {
            shape.pattern.whole = (0..from).collect();
        }
        Ok(())
    },
    keys: |shape| {
        let has = |block: &usize| shape.block(*block).window.is_some();
        let types: Vec<_> = (0..shape.blocks).map(|block| if has(&block) { SLIDING } else { FULL }).collect();
        vec![
            size(shape),
            ("layer_types", json!(types)),
            ("max_window_layers", json!((0..shape.blocks).find(has).unwrap_or(shape.blocks))),
            ("use_sliding_window", json!(shape.window.is_some())),
        ]
    },
};
/// No window, although the file has the keys of one: all `layer_types` must be full attention.
/// `use_sliding_window` must be false: the versions of `transformers` give the window to different blocks.
pub(super) const UNUSED: WindowKeys = WindowKeys {
    read_keys: "layer_types max_window_layers sliding_window",
    read: |keys, &mut Shape { blocks, .. }| {
        let full = |value: &Value| (*value == json!(vec![FULL; blocks])).then_some(());
        keys.read("layer_types", &format!("{blocks} times \"{FULL}\""), full).map(|_| ())
    },
    keys: |shape| vec![size(shape), ("use_sliding_window", json!(false))],
};

/// Returns the key of a window's size.
fn size(shape: &Shape) -> KeyValue {
    (SIZE_KEY, json!(shape.window.map(|window| window.size)))
}
impl ConfigKeys<'_> {
    /// Returns the size of the window, or `None` if the key is null. A missing key means the default `SIZE`.
    fn window_size(&self) -> Result<Option<usize>> {
        match self.map.get(SIZE_KEY) {
            Some(Value::Null) => Ok(None),
            _ => self.size(SIZE_KEY, Some(SIZE)).map(Some),
        }
    }
    /// Returns the first layer that has the window according to `layer_types`, or the number of layers if
    /// none has; `None` if the key is missing.
    fn first_sliding(&self, blocks: usize) -> Result<Option<usize>> {
        let wanted =
            format!("\"{FULL}\" for the first layers and \"{SLIDING}\" for the others, {blocks} in all");
        self.read("layer_types", &wanted, |value| {
            let types = value.as_array().filter(|types| types.len() == blocks)?;
            let from = types.iter().position(|kind| kind != FULL).unwrap_or(blocks);
            types[from..].iter().all(|kind| kind == SLIDING).then_some(from)
        })
    }
    /// Returns the error for `layer_types` that ask for a window the other keys do not give.
    fn no_window(&self, used: bool) -> Error {
        let (key, wanted) =
            if used { (SIZE_KEY, "a whole number, 1 or more") } else { ("use_sliding_window", "true") };
        let seen = self.map.get(key).unwrap_or(&Value::Bool(false));
        self.wrong(key, seen, &format!("{wanted}, because layer_types has \"{SLIDING}\""))
    }
}
