//! Mutation testing of communication: runs a world in which one chosen call goes wrong, to check that a proof
//! notices.
//!
//! A proof that has never rejected anything says little. So a first run without a mutant lists its calls
//! ([`Trial::honest`]). Then one run follows for every [`Mutation`] of every call ([`Trial::of`], [`judge`]).
//! The compared results must differ, or the mutant must be equivalent for a reason that is checked
//! ([`Trial::fate`]).
//!
//! In the chosen call all ranks of the group meet as usual and exchange all their inputs. Each rank then
//! computes the mutated result from these. So no rank hangs, and the ledger and the flight recorder show the
//! program as written. In a message only the sender goes wrong.
//!
//! [`Trial`] has an example.
mod answer;
mod engine;
mod judge;
mod site;
#[cfg(all(test, not(loom)))]
mod tests;
mod trial;

pub(crate) use engine::OnTrial;
pub use judge::{MutantTally, judge};
pub use site::{CallSite, ExpectedResult, Mutant, Mutation};
pub use trial::{Fate, NotReached, Outcome, Trial};
