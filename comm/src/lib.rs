//! Communication between ranks: groups of ranks that meet in collectives, meshes of groups, worlds of ranks.
//!
//! A strategy asks its [`Mesh`] for the [`Group`] of one [`Axis`], or of several ([`Mesh::over`]), and calls collectives
//! on it. The same function runs
//! on every rank of a [`World`] (threads of this process), or as any one rank of any world for its price
//! ([`Mesh::ghost`]); a group of one does nothing, so one rank is no special case. A group's blocks of ranks are groups
//! too ([`Group::blocks`]).
//!
//! ```
//! use comm::{Axis, CommError, Reduce, World};
//! use tensor::{Category, Cpu, Tensor};
//!
//! let sums = World::threads(&[(Axis::Tp, 3)])?.run(|device: Cpu<f32>, mesh| {
//!     let group = mesh.group(Axis::Tp).named("a sum of ranks");
//!     let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| group.rank() as f32);
//!     group.all_reduce(&mut x, Reduce::Sum)?;
//!     Ok::<_, CommError>(x.read().expect("the host has values")[0])
//! })?;
//! assert_eq!(sums, [3.0, 3.0, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `axis.rs` | the axes a world is split along, sets of them, the ranks along some |
//! | `grid.rs`, `members.rs` | ranks ↔ coordinates, in an order and two factorings; which ranks are a group |
//! | `group.rs`, `mesh.rs` | this rank's membership of a group, and groups within it; its groups along axes |
//! | `collectives.rs`, `started.rs` | what the ranks of a group do together: at once, or started and waited for |
//! | `request.rs`, `values.rs` | messages, and what is under way; plain values |
//! | `call.rs`, `tag.rs`, `error.rs` | what a rank is about to do, as a sentence; what a message is; what can go wrong |
//! | `lasting.rs` | names that are read from other processes |
//! | `ledger.rs` | calls, elements and bytes on the wire by set of axes and operation |
//! | `record.rs`, `flight.rs`, `trace.rs` | what is kept of a rank's calls: for a table of the last, for a timeline |
//! | `schedule.rs`, `algorithms/` | a collective as data: who sends what to whom when; all-reduces, one file each |
//! | `link.rs` | what a message takes in the α–β model |
//! | `mutants/` | a world of which one call goes wrong, to see that a proof notices |
//! | `engine.rs`, `ghost.rs` | what carries the bytes; an engine that carries none |
//! | `sync.rs` | threads, locks and atomics, or a model checker's |
//! | `shared.rs` | places that ranks share as threads: who copies and adds there |
//! | `threads/` | ranks as threads: who fails, sleeps and waits; meeting; started calls; messages; reduction; the world |
//! | `processes/` | ranks as processes: how they find each other, what they tell, who stands in for them |
pub mod algorithms;
mod axis;
mod call;
mod collectives;
#[doc(hidden)]
pub mod compiled;
#[cfg(all(test, not(loom)))]
mod counting;
#[cfg(test)]
mod drawn;
mod engine;
mod error;
mod flight;
mod ghost;
mod grid;
mod group;
mod lasting;
mod ledger;
mod link;
mod members;
mod mesh;
#[cfg(any(test, feature = "mutants"))]
pub mod mutants;
mod processes;
mod record;
mod request;
mod schedule;
mod shared;
mod size;
mod started;
mod sync;
mod tag;
mod threads;
mod trace;
mod values;

pub(crate) use call::{Call, Counts, Elem};
pub(crate) use engine::{Engine, Engines, Post, Standing, Windows};
pub(crate) use grid::Grid;
pub(crate) use members::Members;
pub(crate) use record::Record;

pub use algorithms::Algorithm;
pub use axis::{Axes, Axis, Ranks};
pub use call::{CallRecord, Op, Reduce};
pub use error::{CommError, Result};
pub use flight::FlightRecorder;
pub use group::Group;
pub use ledger::{Ledger, Traffic};
pub use link::{Link, LinkError};
pub use mesh::{Mesh, Profiling, TraceSpan};
pub use processes::{Asked, Launch, Processes, Secret};
pub use request::Request;
pub use schedule::{Arrival, CommSchedule, CommStep, Transfer};
pub use shared::{Joint, Jointly, PieceMoved, Reduction, SharedPlace};
pub use size::{parse_bytes, readable};
pub use started::{InPlace, Together};
pub use tag::Tag;
pub use threads::{RankError, Stuck, Within, World, caught};
pub use trace::{Event, Run, Trace, What};
