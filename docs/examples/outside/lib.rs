//! Strategies of your own, in a crate of your own: no line of equipart is changed, and no list knows them.
//!
//! | file | what it adds | in place of |
//! |---|---|---|
//! | `rows.rs` | [`OwnRows`]: a row-parallel layer | `RowLinear` |
//! | `gathered.rs` | [`JustInTime`]: a weight that rests cut by rows and is gathered when it is used | `ColumnLinear` |
//! | `rounds.rs` | [`InRounds`]: when each stage goes through which microbatch | 1F1B |
//! | `tests.rs` | all three proven, priced and tried, as whole models | |
//!
//! **A layer** implements [`layers::Layer`]: a forward, and a backward in two halves. What a rank holds is said by types of
//! [`layers::ops`]: a product of what is cut along the same axis gives a [`Partial`](layers::ops::Partial), and nothing
//! but a collective opens that. **A strategy** ([`layers::Strategy`]) says what it is called and builds such layers. **A
//! schedule** ([`parallel::Schedule`]) writes a table; what is sent and received follows from it.
//!
//! **Taking it.** A layout with what no list knows is a [`parallel::Scheme`]. All that takes a layout takes one: proofs, prices,
//! [`parallel::session`].
//!
//! ```
//! use outside::{InRounds, JustInTime, OwnRows};
//! use parallel::{Layout, Schedule, Scheme};
//! use tensor::{Cpu, F61};
//!
//! let layout: Layout = "tp=2,pp=2".parse()?;
//! let mut scheme: Scheme<Cpu<F61>> = Scheme::with(&layout, &[&OwnRows, &JustInTime]);
//! scheme.schedule = Some((&InRounds as &dyn Schedule).into());
//! assert_eq!(scheme.to_string(), "tp=2,pp=2 with own rows and weights just in time and GPipe in rounds");
//! # Ok::<(), parallel::Error>(())
//! ```
//!
//! **Its proofs.** Of a layer alone: `layers::proof::proves`, at the end of its file. Of whole models:
//! `prove::cases::certify_panel(scheme, …)`; with every call between ranks gone wrong, one after the other:
//! `comm::mutants`; what it holds: `parallel::price`. All in `tests.rs`, for any number of strategies. `Cargo.toml`
//! turns on the two features that the harnesses are in, for tests alone.
//!
//! What may not be said here: that a tensor is a partial sum. Only a product says so, since a sum that is declared where there
//! is none, or is none where there is one, is the bug that types are to keep out.
//!
//! ```compile_fail,E0624
//! use {comm::Axis, kernels::Kernels, layers::ops::Partial, tensor::Tensor};
//! fn addend<D: Kernels>(x: Tensor<D>) -> Partial<D> {
//!     Partial::sum(x, Axis::Tp)
//! }
//! ```
//! ```
//! use {comm::Group, kernels::Kernels, layers::{Result, ops::{Partial, Rows, Split}}, tensor::Tensor};
//! fn addend<D: Kernels>(x: &Tensor<D>, w: &Rows<D>, group: &Group<D::Place>) -> Result<Partial<D>> {
//!     Split::cut(x, group)?.matmul(w)
//! }
//! ```
mod gathered;
mod rounds;
mod rows;
#[cfg(test)]
mod tests;

pub use gathered::JustInTime;
pub use rounds::InRounds;
pub use rows::OwnRows;
