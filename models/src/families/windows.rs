//! Sliding windows: the size is in `sliding_window`, in all families; the blocks that have it are not.
use super::parts::ShapeKeys;
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
const USED: &str = "use_sliding_window";

/// A window in every block. A missing key means the default.
pub(super) const EVERY_BLOCK: ShapeKeys = ShapeKeys {
    read_keys: SIZE_KEY,
    read: |keys, shape| {
        shape.window = keys.window_size(Some(SIZE))?.map(|size| Window { size, sinks: 0 });
        Ok(())
    },
    keys: |shape| vec![size(shape)],
};
/// A window in every block. A missing key means none.
pub(super) const IF_GIVEN: ShapeKeys = ShapeKeys {
    read: |keys, shape| match keys.map.get(SIZE_KEY) {
        Some(_) => (EVERY_BLOCK.read)(keys, shape),
        None => Ok(()),
    },
    ..EVERY_BLOCK
};
/// A window in the later blocks, if `use_sliding_window` is true: those that `layer_types` lists, or those
/// from `max_window_layers` on.
pub(super) const LATER_BLOCKS: ShapeKeys = ShapeKeys {
    read_keys: "layer_types max_window_layers sliding_window use_sliding_window",
    read: |keys, shape| {
        let blocks = shape.blocks;
        let used = keys.flag(USED, false)?;
        let size = keys.window_size(Some(SIZE))?.filter(|_| used);
        let from = match keys.first_sliding(blocks)? {
            Some(from) if from < blocks && size.is_none() => return Err(keys.no_window(used)),
            Some(from) => from,
            None => keys.count("max_window_layers", FROM)?,
        };
        shape.window = size.filter(|_| from < blocks).map(|size| Window { size, sinks: 0 });
        if shape.window.is_some() {
            shape.pattern.whole = keys.some_blocks(blocks, "a window", |block| block < from)?;
        }
        Ok(())
    },
    keys: |shape| {
        let first = (0..shape.blocks).find(|block| shape.block(*block).window.is_some());
        let from = ("max_window_layers", json!(first.unwrap_or(shape.blocks)));
        [vec![from, (USED, json!(shape.window.is_some()))], listed_keys(shape)].concat()
    },
};
/// Returns the keys of windows in the blocks that `layer_types` lists.
pub(super) fn listed_keys(shape: &Shape) -> Vec<KeyValue> {
    let has = |block: usize| shape.block(block).window.is_some();
    let types: Vec<_> = (0..shape.blocks).map(|block| if has(block) { SLIDING } else { FULL }).collect();
    vec![size(shape), ("layer_types", json!(types))]
}
/// No window, although the file has the keys of one: all `layer_types` must be full attention.
/// `use_sliding_window` must be false: the versions of `transformers` give the window to different blocks.
pub(super) const UNUSED: ShapeKeys = ShapeKeys {
    read_keys: "layer_types max_window_layers sliding_window",
    read: |keys, &mut Shape { blocks, .. }| {
        let full = |value: &Value| (*value == json!(vec![FULL; blocks])).then_some(());
        keys.read("layer_types", &format!("{blocks} times \"{FULL}\""), full).map(|_| ())
    },
    keys: |shape| vec![size(shape), (USED, json!(false))],
};

/// Returns the key of a window's size.
fn size(shape: &Shape) -> KeyValue {
    (SIZE_KEY, json!(shape.window.map(|window| window.size)))
}
impl ConfigKeys<'_> {
    /// Returns the size of the window, or `None` if the key is null. A missing key means the default.
    fn window_size(&self, default: Option<usize>) -> Result<Option<usize>> {
        match self.map.get(SIZE_KEY) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(_) => self.size(SIZE_KEY, None).map(Some),
        }
    }
    /// Gives a shape a window in the blocks that `layer_types` lists as sliding; by default, if there is a
    /// window, in those of this rule. Also takes the defaults of `use_sliding_window` and of the size.
    pub(super) fn windows(
        &self,
        shape: &mut Shape,
        (used, default): (bool, Option<usize>),
        rule: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let blocks = shape.blocks;
        let used = self.flag(USED, used)?;
        let size = self.window_size(default)?.filter(|_| used);
        let wanted = format!("\"{FULL}\" or \"{SLIDING}\" for each of the {blocks} layers");
        let is_sliding =
            |value: &Value| [FULL, SLIDING].iter().position(|kind| value == kind).map(|i| i == 1);
        let listed = self.read("layer_types", &wanted, |value| {
            let types = value.as_array().filter(|types| types.len() == blocks)?;
            types.iter().map(is_sliding).collect::<Option<Vec<_>>>()
        })?;
        let sliding = listed.unwrap_or_else(|| (0..blocks).map(|i| size.is_some() && rule(i)).collect());
        if sliding.contains(&true) {
            let size = size.ok_or_else(|| self.no_window(used))?;
            shape.window = Some(Window { size, sinks: 0 });
            shape.pattern.whole = self.some_blocks(blocks, "a window", |block| !sliding[block])?;
        }
        Ok(())
    }
    /// Returns the blocks of a rule. Fails if there are some, and more blocks than can be told apart.
    pub(super) fn some_blocks(
        &self,
        blocks: usize,
        what: &str,
        rule: impl Fn(usize) -> bool,
    ) -> Result<Blocks> {
        if blocks > Blocks::MOST && (0..blocks).any(&rule) {
            let wanted = format!("at most {} in a model with {what} in some blocks", Blocks::MOST);
            return Err(self.wrong("num_hidden_layers", &json!(blocks), &wanted));
        }
        Ok((0..blocks).filter(|block| rule(*block)).collect())
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
        let (key, wanted) = if used { (SIZE_KEY, "a whole number, 1 or more") } else { (USED, "true") };
        let seen = self.map.get(key).unwrap_or(&Value::Bool(false));
        self.wrong(key, seen, &format!("{wanted}, because layer_types has \"{SLIDING}\""))
    }
}
