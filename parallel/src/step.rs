//! Pipeline steps as data: the cells of a schedule ([`Cell`]), and the actions of every rank ([`Action`]).
//!
//! A schedule lists when each chunk of the model runs, forward and backward, for each microbatch. Sends,
//! receives, the wait for gradients and the update are derived from it.
//!
//! ```text
//! two stages, two microbatches, GPipe      rank 0   F0 F1 · · B0 B1
//!                                          rank 1   · F0 F1 B0 B1 ·
//! lowered, rank 1                          receive activation 0, F0, receive activation 1, F1,
//!                                          B0, send gradient 0, B1, send gradient 1, complete, update
//! ```
//!
//! Letters are those of `torch.distributed.pipelining`: `F` forward, `B` the whole backward, `I` its input
//! half, `W` its weight half. `U` is an update after one microbatch. Source: Huang et al., "GPipe", §2.2,
//! arXiv:1811.06965; Qi et al., "Zero bubble pipeline parallelism", §2, arXiv:2401.10241 (the two halves).
mod cell;
mod check;
mod lowered;
mod moves;
mod schedule;
pub mod simulate;

pub use cell::{Action, Cell, PassKind, Payload, Plan, Task};
#[cfg(test)]
pub(crate) use check::meet::meet;
pub use check::{PeakNeeds, check};
pub use lowered::lowered;
pub use moves::{ActionPhase, StepMoves, moves, moves_of_all};
pub use schedule::{Bubble, Claims, Schedule, Waiting};
