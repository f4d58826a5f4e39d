//! A classifier of pictures in a folder: `config.json` with its sizes, and `model.safetensors`.
//!
//! Names and shapes are those that `PyTorch` gives to `Sequential(Linear, ReLU, Linear, …)`: layer `i` is `2i.weight`
//! `[outputs, inputs]` and `2i.bias` `[outputs]`, so that
//!
//! ```text
//! model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
//! ```
//! reads it. The input is `(pixels/255 − 0.1307)/0.3081`, in float32.
use crate::model::Weights;
use layers::Random;
use parallel::{Entry, Orientation, Result, Stored};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tensor::files;
use tensor::safetensors::Shards;

/// What config.json calls it.
const MODEL_TYPE: &str = "mlp";

/// Sizes and a source of weights. Cheap to clone; each rank reads its share.
#[derive(Clone)]
pub struct Classifier {
    /// Pixels, features of the layers between, classes.
    pub sizes: Vec<usize>,
    /// Where it comes from, for messages.
    pub origin: String,
    pub(crate) weights: Weights,
}

impl Classifier {
    /// Untrained weights from a seed.
    pub fn fresh(pixels: usize, hidden: &[usize], classes: usize, seed: u64) -> Self {
        let (sizes, origin) =
            ([&[pixels], hidden, &[classes]].concat(), format!("fresh weights of seed {seed}"));
        Self { sizes, origin, weights: Weights::Random(Random { seed }) }
    }
    /// A folder that a run wrote; none if it holds no classifier.
    ///
    /// # Errors
    /// If its weights cannot be read, or are not of the sizes in its config.json.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let config = files::read(&dir.join("config.json")).ok();
        let config: Option<Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let Some(config) = config.filter(|config| config["model_type"] == MODEL_TYPE) else {
            return Ok(None);
        };
        let sizes: Vec<usize> = serde_json::from_value(config["sizes"].clone()).unwrap_or_default();
        let shards = Shards::open(dir)?;
        let origin = shards.path().to_owned();
        let weights = Weights::Stored(Arc::new(Stored::new(shards, entries(&sizes), |_| false)?));
        Ok(Some(Self { sizes, origin, weights }))
    }
    /// Its config.json.
    pub fn to_json(&self) -> String {
        let config = serde_json::json!({
            "model_type": MODEL_TYPE,
            "sizes": self.sizes,
            "hidden_act": "relu",
            "input": "(pixels / 255 - 0.1307) / 0.3081",
        });
        format!("{config:#}\n")
    }
}

/// Every tensor of the file, in program order.
pub(crate) fn entries(sizes: &[usize]) -> Vec<Entry> {
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
