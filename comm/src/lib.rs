//! Communication between ranks: groups of ranks, meshes of groups, and worlds of ranks.
//!
//! A strategy takes the [`Group`] of one or more axes from its [`Mesh`] and calls collectives on it. The same
//! function runs on every rank of a [`World`], or as any one rank for its price ([`Mesh::ghost`]).
//!
//! | files | contents |
//! |---|---|
//! | `axis.rs`, `grid.rs`, `members.rs` | axes and sets of them; ranks ↔ coordinates; members of a group |
//! | `group.rs`, `mesh.rs` | a rank's membership of a group; a rank's groups along axes |
//! | `collectives.rs`, `started.rs` | collectives: blocking, or started and waited for later |
//! | `request.rs`, `values.rs`, `shared.rs` | messages and requests; plain values; places shared by threads |
//! | `call.rs`, `tag.rs`, `error.rs`, `mutants/` | calls in words; tags; errors; worlds with a wrong call |
//! | `ledger.rs`, `record.rs`, `flight.rs`, `trace.rs` | traffic; a rank's last calls; a timeline |
//! | `engine.rs`, `ghost.rs`, `threads/`, `process/`  | engines: without peers, by threads, by processes |
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story

// Ground: axes and the members of their groups, tags, errors, and waiting.
mod axis;
mod error;
mod grid;
mod members;
mod panics;
mod static_name;
mod sync;
mod tag;

// One call of a rank, with the windows that it shows.
mod call;

// What makes calls, and what is recorded of them.
mod engine;
mod flight;
mod ledger;
mod record;
mod shared;
mod trace;

// Groups, their collectives and messages, and the mesh.
mod collectives;
#[cfg(debug_assertions)] // a release shares no instances: see the module
#[doc(hidden)]
pub mod compiled;
mod ghost;
mod group;
mod mesh;
mod request;
mod started;
mod values;

// Ranks as processes, and worlds in which a call goes wrong.
#[cfg(any(test, feature = "mutants"))]
pub mod mutants;
mod process;

// Ranks as threads.
mod threads;

// Worlds: ranks that run one function.
mod world;

#[cfg(all(test, not(loom)))]
#[path = "tests/counting.rs"]
mod counting;
#[cfg(test)]
#[path = "tests/drawn.rs"]
mod drawn;

pub(crate) use call::{Call, Counts, Elem};
pub(crate) use engine::{Engine, Engines, Post, StandingPost, Windows};
pub(crate) use grid::Grid;
pub(crate) use members::Members;
pub(crate) use record::RankRecord;

pub use axis::{Axes, Axis, Ranks};
pub use call::{CallRecord, Op, Reduce};
pub use error::{CommError, Result, named_ranks};
pub use flight::FlightRecorder;
pub use ghost::{CallClock, GhostCall};
pub use group::Group;
pub use ledger::{Ledger, Traffic};
pub use mesh::{Mesh, Profiling, TraceSpan};
pub use panics::{PanicContext, caught};
pub use process::{Launch, MeetingError, Processes, RunInputs, Secret};
pub use record::RankWaits;
pub use request::Request;
pub use shared::{JointCall, JointOperation, PieceMoved, Reduction, SharedPlace};
pub use started::{BucketRequest, InPlace};
pub use tag::Tag;
pub use trace::{Event, TimeUse, Trace, TraceRun};
pub use world::{RankError, StuckReport, World};
