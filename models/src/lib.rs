//! Models as files and texts: what a model is outside of a run, and how it continues a text.
//!
//! | file | holds |
//! |---|---|
//! | `config.rs` | `config.json` of every family, read and written |
//! | `names.rs` | the tensors of its files: which is which part of which parameter |
//! | `model.rs` | a configuration and where its weights are |
//! | `embedded.rs` | the default that is part of the program, and its text |
//! | `tokenizer.rs` | text as ids and back |
//! | `text.rs`, `ids.rs` | texts and sequences of ids to learn from |
//! | `sampling.rs`, `generate.rs` | the next token, and all that follow a prompt |
//! | `convert.rs`, `upcycle.rs` | a model written again in another kind of number, or with experts |
//! | `digits.rs` | pictures of digits, for a classifier |
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
pub use learner::Learner;
pub use model::Model;
