//! The commands, one file each: `run` does what the arguments ask.
//!
//! | command | file | does |
//! |---|---|---|
//! | `compare` | `compare.rs` | the same work under several layouts: time, memory, traffic, equality |
//! | `train` | `train.rs` | trains on text, or on given ids, with checkpoints that resume |
//! | `train --model mlp` | `train/epochs.rs` | trains a plain classifier on pictures of digits |
//! | `generate` | `generate.rs` | continues a prompt, with a cache of keys and values |
//! | `prove` | `prove.rs` | the whole model under a layout equals the unsplit oracle, bit for bit |
//! | `prove --cases` | `prove/cases.rs` | models, layouts and batches drawn; a failure shrunk to the smallest |
//! | `eval` | `eval.rs` | loss and perplexity of a text or of given ids |
//! | `convert` | `convert.rs` | writes a model anew, in the Hugging Face layout |
//! | `diff` | `diff.rs` | whether two runs' tensors differ by rounding or by a bug |
//! | `price` | `price.rs` | peak memory, operations and traffic of a layout, from shapes alone |
//! | `collectives` | `collectives.rs` | all-reduce algorithms: who sends what to whom when, and what they take |
//! | `schedule` | `schedule.rs` | pipelines: which rank does what when, what it waits for and holds |
//! | `devices` | `devices.rs` | what there is to compute on, and why not more |
//! | `gpu-check` | `gpu_check.rs` | whether a GPU computes what the host computes, and how fast |
//! | `strategies` | `strategies.rs` | what a layout can name |
//! | `bench` | `bench.rs` | how fast all this is, beside the machine's limits and other programs |
//! | `--profile` of `bench` and `train` | `profile.rs` | where a training step's time goes, by kind and by layer |
pub(crate) mod bench;
pub mod collectives;
pub mod compare;
pub(crate) mod convert;
pub mod devices;
pub mod diff;
pub mod eval;
pub(crate) mod generate;
pub(crate) mod gpu_check;
pub mod price;
pub(crate) mod profile;
pub(crate) mod prove;
pub(crate) mod schedule;
pub(crate) mod strategies;
pub mod train;
