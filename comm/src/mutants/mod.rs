//! Mutants of communication: a world of which one chosen call goes wrong, to see that a proof notices.
//!
//! A proof that has never rejected anything says little. So a run is made once as it should be, which lists its calls
//! ([`Trial::honest`]); then once for every [`Mutation`] of every call ([`Trial::of`], [`judge`]). What is compared
//! afterwards must differ, or the mutant must be equivalent for a reason that is checked ([`Trial::fate`]).
//!
//! In the chosen call all ranks of the group meet as ever, tell each other all they have, and each then makes of it what
//! the mutation says. So nobody hangs, and ledger and flight recorder tell of the program as it is written. Of a
//! message the sender alone goes wrong.
//!
//! ```
//! use comm::mutants::{Fate, Mutant, Mutation, Outcome, Trial};
//! use comm::{Axis, CommError, Reduce, World};
//! use tensor::{Category, Cpu, Tensor};
//!
//! let mutant = Mutant { call: 1, mutation: Mutation::Skip };
//! let trial = Trial::of(mutant);
//! let sums = World::threads(&[(Axis::Tp, 2)])?.on_trial(&trial).run(|device: Cpu<f32>, mesh| {
//!     let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| mesh.rank() as f32);
//!     mesh.group(Axis::Tp).all_reduce(&mut x, Reduce::Sum)?;
//!     Ok::<_, CommError>(x.read().expect("the host has values")[0])
//! })?;
//! assert_eq!(sums, [0.0, 1.0]); // not 1, 1
//! assert_ne!(sums, [1.0, 1.0]);
//! assert_eq!(trial.fate(Outcome::Differs)?, Fate::Killed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod answer;
mod engine;
mod judge;
mod site;
#[cfg(all(test, not(loom)))]
mod tests;
mod trial;

pub(crate) use engine::OnTrial;
pub use judge::{Tally, judge};
pub use site::{Mutant, Mutation, Outlook, Site};
pub use trial::{Fate, NeverCame, Outcome, Trial};
