//! Which blocks see the last tokens only.
use super::{Architecture, Keys};
use layers::Window;
use parallel::{Error, Result};
use serde_json::{Value, json};

/// Where `sliding_window` is left out, in both versions and for all models that read it.
const SIZE: usize = 4096;
/// Where `max_window_layers` is left out.
const FROM: usize = 28;
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl Keys<'_> {
    /// The window of a model of so many blocks; none if no block has it.
    pub(super) fn window(&self, architecture: Architecture, blocks: usize) -> Result<Option<Window>> {
        let window = |size, from| Window { size, sinks: 0, from };
        match architecture {
            Architecture::Llama | Architecture::EquipartMoe | Architecture::Gpt2 => Ok(None),
            Architecture::Mixtral if !self.map.contains_key("sliding_window") => Ok(None),
            Architecture::Qwen2Moe | Architecture::Qwen3Moe => {
                let wanted = format!("{blocks} times \"{FULL}\"");
                let full = |value: &Value| (*value == json!(vec![FULL; blocks])).then_some(());
                self.read("layer_types", &wanted, full).map(|_| None)
            }
            Architecture::Mistral | Architecture::Mixtral => {
                Ok(self.window_size()?.map(|size| window(size, 0)))
            }
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let (used, size) = (self.flag("use_sliding_window", false)?, self.window_size()?);
                let size = size.filter(|_| used);
                let from = match self.first_sliding(blocks)? {
                    Some(from) if from < blocks && size.is_none() => return Err(self.no_window(used)),
                    Some(from) => from,
                    None => self.count("max_window_layers", FROM)?,
                };
                Ok(size.filter(|_| from < blocks).map(|size| window(size, from)))
            }
        }
    }
    /// Layers that should have a window of no size.
    fn no_window(&self, used: bool) -> Error {
        let (key, wanted) = if used {
            ("sliding_window", "a whole number, 1 or more")
        } else {
            ("use_sliding_window", "true")
        };
        let seen = self.map.get(key).unwrap_or(&Value::Bool(false));
        self.wrong(key, seen, &format!("{wanted}, as layer_types has \"{SLIDING}\""))
    }
    /// Null is no window; a key that is left out is not null.
    fn window_size(&self) -> Result<Option<usize>> {
        match self.map.get("sliding_window") {
            Some(Value::Null) => Ok(None),
            _ => self.size("sliding_window", Some(SIZE)).map(Some),
        }
    }
    /// The first layer that `layer_types`, if they are given, say to have the window; their number if none has.
    fn first_sliding(&self, blocks: usize) -> Result<Option<usize>> {
        let wanted =
            format!("\"{FULL}\" for the first layers and \"{SLIDING}\" for the others, {blocks} in all");
        self.read("layer_types", &wanted, |value| {
            let types = value.as_array().filter(|types| types.len() == blocks)?;
            let from = types.iter().position(|kind| kind != FULL).unwrap_or(blocks);
            types[from..].iter().all(|kind| kind == SLIDING).then_some(from)
        })
    }
}

/// The keys that make both versions give this window to these blocks.
pub(super) fn keys(
    architecture: Architecture,
    window: Option<Window>,
    blocks: usize,
) -> Vec<(&'static str, Value)> {
    let size = ("sliding_window", json!(window.map(|w| w.size)));
    match architecture {
        Architecture::Llama | Architecture::EquipartMoe | Architecture::Gpt2 => vec![],
        Architecture::Mistral | Architecture::Mixtral => vec![size],
        Architecture::Qwen2Moe | Architecture::Qwen3Moe => vec![size, ("use_sliding_window", json!(false))],
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let from = window.map_or(blocks, |w| w.from);
            let types: Vec<_> = (0..blocks).map(|block| if block < from { FULL } else { SLIDING }).collect();
            vec![
                size,
                ("layer_types", json!(types)),
                ("max_window_layers", json!(from)),
                ("use_sliding_window", json!(window.is_some())),
            ]
        }
    }
}
