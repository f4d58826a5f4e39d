//! Strategies of your own, in a crate of your own: no line of equipart is changed, and no list knows them.
//!
//! | file | what it adds | in place of |
//! |---|---|---|
//! | `rows.rs` | [`OwnRows`]: a row-parallel layer | `RowLinear` |
//! | `gathered.rs` | [`JustInTime`]: a weight kept cut by rows, and gathered for each use | `ColumnLinear` |
//! | `rounds.rs` | [`InRounds`]: the order of microbatches on each stage | 1F1B |
//! | `ahead.rs` | [`Ahead`], [`SecondForwards`]: cells of a kind of its own, and what they run | 1F1B |
//! | `counted.rs` | [`Counted`]: an optimizer with state in blocks, and its tests | AdamW |
//! | `mixed.rs` | [`mixed`]: a model with four kinds of blocks | |
//! | `heads.rs` | [`two_sizes`], [`capped`], [`with_sinks`]: models with another attention | |
//!
//! [`OwnRows`] explains layers and strategies, [`InRounds`] schedules and layouts. Proofs are at the ends of
//! files and in `tests`; `Cargo.toml` enables the two features with the harnesses.
mod ahead;
mod counted;
mod gathered;
mod heads;
mod mixed;
mod rounds;
mod rows;
#[cfg(test)]
mod tests;

pub use ahead::{Ahead, SecondForwards};
pub use counted::Counted;
pub use gathered::JustInTime;
pub use heads::{capped, two_sizes, with_sinks};
pub use mixed::mixed;
pub use rounds::InRounds;
pub use rows::OwnRows;
