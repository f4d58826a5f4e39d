//! Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
//!
//! The library behind the binary `equipart`. Each command is one file:
//!
//! | command | file | does |
//! |---|---|---|
//! | `compare` | [`mod@compare`] | the same work under several layouts: time, memory, traffic, equality |
//! | `train` | [`mod@train`] | trains on text, or on given ids, with checkpoints that resume |
//! | `train --model mlp` | [`mod@classify`] | trains a plain classifier on pictures of digits |
//! | `generate` | [`mod@generate`] | continues a prompt, with a cache of keys and values |
//! | `prove` | [`mod@prove`] | the whole model under a layout equals the unsplit oracle, bit for bit |
//! | `prove --cases` | [`mod@cases`] | models, layouts and batches drawn; a failure shrunk to the smallest |
//! | `eval` | [`mod@eval`] | loss and perplexity of a text or of given ids |
//! | `convert` | [`mod@convert`] | writes a model anew, in the Hugging Face layout |
//! | `diff` | [`mod@diff`] | whether two runs' tensors differ by rounding or by a bug |
//! | `price` | [`mod@price`] | peak memory, operations and traffic of a layout, from shapes alone |
//! | `collectives` | [`mod@collectives`] | all-reduce algorithms: who sends what to whom when, and what they take |
//! | `strategies` | [`layout`] | what a layout can name |
//! | `--profile` of `bench` and `train` | [`mod@profile`] | where a training step's time goes, by kind and by layer |
//! | `bench` | [`mod@bench`] | how fast all this is, beside the machine's limits and other programs |
//!
//! What runs has been priced before, and is refused where the free [`memory`] cannot hold it. It runs over a [`Network`]: links, patience, and a trace that [`mod@trace`] makes a file of.
pub mod bench;
pub mod bound;
pub mod cases;
pub mod classify;
pub mod cli;
pub mod collectives;
pub mod compare;
pub mod config;
pub mod convert;
pub mod diff;
pub mod digits;
pub mod dump;
pub mod embedded;
pub mod error;
pub mod eval;
pub mod generate;
pub mod ids;
pub mod measure;
pub mod memory;
pub mod model;
pub mod names;
pub mod network;
pub mod number;
pub mod oracle;
pub mod price;
pub mod profile;
pub mod prove;
pub mod sampling;
pub mod schedule;
pub mod settings;
pub mod state;
pub mod text;
pub mod tokenizer;
pub mod trace;
pub mod train;

pub use config::Config;
pub use error::{Error, Result};
pub use model::Model;
pub use network::Network;
pub use parallel::{Layout, layout};
