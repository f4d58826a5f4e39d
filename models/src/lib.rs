//! Models outside of a run: their files, tokenizers and texts, and text generation.

// The models embedded in the program, their training text, and the choice of the next token.
pub mod embedded;
pub mod sampling;

// A model's configuration, and the parts of it that differ between families.
pub mod config;

// Tensors in files, with the part of a parameter that each holds; text to ids and back.
pub mod names;
pub mod tokenizer;

// The families: keys of `config.json` and names of tensors, one file each.
pub mod families;

// A configuration and the source of its weights.
mod model;

// Training data: images of digits, sequences of ids, texts.
pub mod digits;
pub mod ids;
pub mod text;

// Uses of a model: continuation of prompts, a run, and the same model in another dtype or with experts.
pub mod convert;
pub mod generate;
mod learner;
pub mod upcycle;

pub use config::Config;
pub use learner::TrainableModel;
pub use model::Model;
