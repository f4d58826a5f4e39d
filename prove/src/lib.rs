//! `prove`: the whole model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts, then train on ragged microbatches with a clipped norm. The program reads as a
//! generation does: texts are dealt over data ranks, prompts are fed whole and then token by token, with a cache of keys
//! and values, and logits are those of the last token fed. Compared are these, then for each step the loss, the norm²,
//! every gradient and every new weight, put together from all ranks, on every rank.
//! After a step a fresh random number is added to every weight, so that degrees, and with them the bound, do not
//! compound.
//!
//! | file | holds |
//! |---|---|
//! | `subject.rs` | what is proven: a model, texts to read, steps to train |
//! | `program.rs`, `trace.rs` | what a rank does, and what of it is compared with the oracle |
//! | `proof.rs`, `verdict.rs`, `difference.rs` | the proof under several keys, and what it comes to |
//! | `locate.rs`, `timeline.rs` | where a program parts from the oracle, everything looked at |
//! | `oracle.rs`, `bound.rs` | the subject in the oracle's words; how often a proof could err |
//! | `keys.rs` | how many keys make a proof sure |
//! | `exact.rs` | what any device can prove: linear layers and collectives on whole numbers |
//! | `cases.rs` | models, layouts and batches drawn, and shrunk where they fail; the panel |
pub mod bound;
pub mod cases;
mod difference;
mod exact;
mod keys;
mod locate;
pub mod oracle;
mod program;
mod proof;
mod subject;
mod timeline;
mod trace;
mod verdict;

pub use difference::Difference;
pub use exact::{Exact, exact};
pub use keys::{KEYS, Keys, SURE};
pub use locate::{locate, locate_in};
pub use program::read;
pub use proof::{Truths, bytes, certify, check, dump, prove, prove_in};
pub use subject::Subject;
pub use verdict::Verdict;

/// Who is told what is being done.
pub type Watch<'a> = dyn Fn(&str) + Sync + 'a;
