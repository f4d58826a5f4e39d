//! `prove`: a model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts, then train. Logits, losses, norms, every gradient and every new weight are
//! compared, on every rank (`program.rs`).

// Compared tensors, the first difference, keys; and a model in the oracle's types.
mod difference;
mod keys;
pub mod oracle;
mod trace;

// The subject of a proof (a model, texts to read, steps to train), and how sure its proof is.
pub mod bound;
mod subject;

// The program of a rank: everything that is compared, in its order, and texts in slots.
mod program;
mod timeline;
mod turns;

// Proofs: under several keys, with a verdict and the place of a difference; of a graph of operators, each
// split alone; and on any device, of linear layers and collectives on integers.
mod exact;
mod graph;
mod locate;
mod proof;
mod verdict;
mod world;

// Cases: models, layouts and batches that are small, drawn, shrunk on failure, or of the panel.
pub mod cases;

pub use difference::Difference;
pub use exact::{Exact, exact};
pub use graph::{GraphVerdict, prove_graph};
pub use keys::{KEYS, Keys, SURE};
pub use locate::{locate, locate_in};
pub use program::read;
pub use proof::{OracleTraces, bytes, certify, check, dump, prove, prove_in};
pub use subject::{ProofProgress, Subject};
pub use verdict::Verdict;
pub use world::world;
