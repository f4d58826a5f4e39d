//! `prove`: a model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts, then train. Logits, losses, norms, every gradient and every new weight are
//! compared, on every rank (`program.rs`).
//!
//! | file | holds |
//! |---|---|
//! | `subject.rs` | the subject of a proof: a model, texts to read, steps to train |
//! | `program.rs`, `trace.rs` | the program of a rank, and its tensors that are compared |
//! | `proof.rs`, `verdict.rs`, `difference.rs` | the proof under several keys, and its outcome |
//! | `locate.rs`, `timeline.rs` | the place where a program departs from the oracle |
//! | `oracle.rs`, `bound.rs`, `keys.rs` | the subject in the oracle's types; how sure a proof is |
//! | `graph.rs` | proof of a graph of operators, each split alone |
//! | `exact.rs` | proof on any device: linear layers and collectives on integers |
//! | `cases.rs` | models, layouts and batches, drawn, and shrunk on failure; the panel |
pub mod bound;
pub mod cases;
mod difference;
mod exact;
mod graph;
mod keys;
mod locate;
pub mod oracle;
mod program;
mod proof;
mod subject;
mod timeline;
mod trace;
mod turns;
mod verdict;

pub use difference::Difference;
pub use exact::{Exact, exact};
pub use graph::{GraphVerdict, prove_graph};
pub use keys::{KEYS, Keys, SURE};
pub use locate::{locate, locate_in};
pub use program::read;
pub use proof::{OracleTraces, bytes, certify, check, dump, prove, prove_in, world};
pub use subject::Subject;
pub use verdict::Verdict;

/// Callback that receives a description of each activity.
pub type ProofProgress<'a> = dyn Fn(&str) + Sync + 'a;
