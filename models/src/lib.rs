//! Models outside of a run: their files, tokenizers and texts, and text generation.
//!
//! | file | holds |
//! |---|---|
//! | `config.rs` | `config.json` of every family, read and written |
//! | `names.rs` | tensor names in files, and the part of a parameter that each holds |
//! | `model.rs` | a configuration and the source of its weights |
//! | `embedded.rs` | the models embedded in the program, and their training text |
//! | `tokenizer.rs` | text to ids and back |
//! | `text.rs`, `ids.rs` | texts and sequences of ids for training |
//! | `sampling.rs`, `generate.rs` | choice of the next token; continuation of prompts |
//! | `convert.rs`, `upcycle.rs` | a model rewritten in another dtype, or with experts |
//! | `digits.rs` | images of digits, for a classifier |
//! | `learner.rs` | a model of text or a classifier, for a run |
pub mod config;
pub mod convert;
pub mod digits;
pub mod embedded;
pub mod generate;
pub mod ids;
mod learner;
mod model;
pub mod names;
pub mod sampling;
pub mod text;
pub mod tokenizer;
pub mod upcycle;

pub use config::Config;
pub use learner::TrainableModel;
pub use model::Model;
