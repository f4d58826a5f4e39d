//! A trainable model: a model of text, or a classifier of images.
//!
//! The folder of a classifier holds `config.json` with its sizes, and `model.safetensors` with the names and
//! shapes that `PyTorch` gives to `Sequential(Linear, ReLU, Linear, …)`: layer `i` is `2i.weight`
//! `[outputs, inputs]` and `2i.bias` `[outputs]`. `PyTorch` reads it with
//!
//! ```text
//! model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
//! ```
//! The input is `(pixels/255 − 0.1307)/0.3081`, in float32.
use crate::model::WeightsSource;
use crate::{Model, names};
use layers::Design;
use ops::{RandomValues, ValueSource};
use parallel::{Entry, Orientation, Result, Stored};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tensor::safetensors::File;
use tensor::{Scalar, files};

/// `model_type` of a classifier in config.json.
const MODEL_TYPE: &str = "mlp";

/// A model and the source of its weights. Cheap to clone; each rank reads its local part.
#[derive(Clone)]
pub struct TrainableModel {
    /// Design of the model.
    pub design: Design,
    /// Origin of the model, for messages.
    pub origin: String,
    /// The model of text; `None` for a classifier.
    pub text: Option<Model>,
    weights: WeightsSource,
}

impl From<Model> for TrainableModel {
    fn from(model: Model) -> Self {
        let weights = model.weights.clone();
        Self { design: model.config.shape.into(), origin: model.origin.clone(), text: Some(model), weights }
    }
}

impl TrainableModel {
    /// Returns a classifier with untrained weights from a seed. Its sizes are the pixels, the features
    /// between layers, and the classes.
    pub fn classifier(sizes: Vec<usize>, seed: u64) -> Self {
        let (design, origin) = (Design::Classifier { sizes }, format!("fresh weights of seed {seed}"));
        Self { design, origin, text: None, weights: WeightsSource::Random(RandomValues { seed }) }
    }
    /// Reads a folder.
    ///
    /// # Errors
    /// If the folder holds no model, or its weights do not match its config.json.
    pub fn read(dir: &Path) -> Result<Self> {
        let config = files::read(&dir.join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        if config["model_type"] != MODEL_TYPE {
            return Ok(Model::read(dir)?.into());
        }
        let fresh = Self::classifier(serde_json::from_value(config["sizes"].clone()).unwrap_or_default(), 0);
        let shards = File::open_folder(dir)?;
        let origin = shards.path().to_owned();
        let weights = WeightsSource::Stored(Arc::new(Stored::new(shards, fresh.entries(), |_| false)?));
        Ok(Self { origin, weights, ..fresh })
    }
    /// Returns the largest number of tokens of a sequence.
    pub fn positions(&self) -> usize {
        self.text.as_ref().map_or(1, |model| model.config.positions)
    }
    /// Returns the weights, as a source for layers.
    pub fn values<E: Scalar>(&self) -> &(dyn ValueSource<E> + Sync) {
        &self.weights
    }
    /// Reads all weights, and checks their digests. Returns the number of tensors that have one.
    ///
    /// # Errors
    /// One sentence with the name of the first tensor that is torn or altered.
    pub fn verify(&self) -> Result<usize> {
        Ok(self.weights.stored().map_or(Ok(0), |stored| stored.shards().verify())?)
    }
    /// Returns a note from the metadata of the weights' file.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.weights.note(key)
    }
    /// Returns every tensor of its file, in program order.
    pub fn entries(&self) -> Vec<Entry> {
        match &self.design {
            Design::Classifier { sizes } => sizes.windows(2).enumerate().flat_map(layer).collect(),
            _ => self.text.as_ref().map(|model| names::entries(&model.config)).unwrap_or_default(),
        }
    }
    /// Returns the text of its config.json.
    pub fn to_json(&self) -> String {
        if let Some(model) = &self.text {
            return model.config.to_json();
        }
        let sizes = if let Design::Classifier { sizes } = &self.design { &sizes[..] } else { &[] };
        let input = "(pixels / 255 - 0.1307) / 0.3081";
        let config =
            json!({ "model_type": MODEL_TYPE, "sizes": sizes, "hidden_act": "relu", "input": input });
        format!("{config:#}\n")
    }
}

/// Returns the two tensors of a classifier's layer.
fn layer((i, size): (usize, &[usize])) -> [Entry; 2] {
    let entry = |[param, name]: [String; 2], rows, orientation| Entry {
        name,
        param,
        height: rows,
        rows: 0..rows,
        columns: 0..size[1],
        orientation,
        within: None,
        plus_one: false,
    };
    [
        entry([format!("layers.{i}"), format!("{}.weight", 2 * i)], size[0], Orientation::Transposed),
        entry([format!("layers.{i}.bias"), format!("{}.bias", 2 * i)], 1, Orientation::Vector),
    ]
}
