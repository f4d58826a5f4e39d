//! A learnt classifier in a folder: `config.json` with its sizes, and `model.safetensors`, which is replaced whole
//! after every epoch.
//!
//! Names and shapes are those that `PyTorch` gives to `Sequential(Linear, ReLU, Linear, …)`: layer `i` is `2i.weight`
//! `[outputs, inputs]` and `2i.bias` `[outputs]`, so that
//!
//! ```text
//! model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
//! ```
//! reads it. The input is `(pixels/255 − 0.1307)/0.3081`, in float32.
use crate::commands::train::state::{self, Lock, MODEL};
use parallel::{ClassifierTrainer, Entry, Orientation, Result};
use std::path::Path;
use tensor::Cpu;

/// Every tensor of the file, in program order.
pub fn entries(sizes: &[usize]) -> Vec<Entry> {
    let layer = |(i, size): (usize, &[usize])| {
        let (param, columns) = (format!("layers.{i}"), 0..size[1]);
        let bias = Entry {
            name: format!("{}.bias", 2 * i),
            param: format!("{param}.bias"),
            rows: 1,
            columns: columns.clone(),
            orientation: Orientation::Vector,
        };
        let name = format!("{}.weight", 2 * i);
        [Entry { name, param, rows: size[0], columns, orientation: Orientation::Transposed }, bias]
    };
    sizes.windows(2).enumerate().flat_map(layer).collect()
}

/// What stands in config.json.
pub fn config(sizes: &[usize]) -> String {
    let config = serde_json::json!({
        "model_type": "mlp",
        "sizes": sizes,
        "hidden_act": "relu",
        "input": "(pixels / 255 - 0.1307) / 0.3081",
    });
    format!("{config:#}\n")
}

/// Makes the folder ready, before any work is done, so that an unwritable one is found now.
///
/// # Errors
/// If there is a model in it already, another run is using it, it is a file, or it cannot be written to.
pub fn prepare(dir: &Path, sizes: &[usize]) -> Result<Lock> {
    let lock = state::claim(dir, &config(sizes), "choose another folder")?;
    state::write_config(dir, &config(sizes))?;
    Ok(lock)
}

/// Writes the model. Every rank calls it; the folder has been prepared.
///
/// # Errors
/// If a value is no finite number or the file cannot be written: then the model before is still whole.
pub(super) fn save(
    dir: &Path,
    sizes: &[usize],
    epoch: usize,
    trainer: &mut ClassifierTrainer<Cpu<f32>>,
) -> Result<()> {
    let (model, _, mesh) = trainer.parts();
    let notes = [("format", "pt".to_string()), ("epoch", epoch.to_string())];
    let notes = notes.map(|(key, value)| (key.to_string(), value)).into();
    parallel::save_params(&dir.join(MODEL), &notes, &entries(sizes), &model.params(), mesh)
}
