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
//! | `schedule.rs`, `algorithms/`, `link.rs` | collectives as data; all-reduces; the α–β model |
//! | `engine.rs`, `ghost.rs`, `threads/`, `processes/` | engines: without peers, by threads, by processes |
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story
pub mod algorithms;
mod axis;
mod call;
mod collectives;
#[cfg(debug_assertions)] // a release shares no instances: see the module
#[doc(hidden)]
pub mod compiled;
#[cfg(all(test, not(loom)))]
#[path = "tests/counting.rs"]
mod counting;
#[cfg(test)]
#[path = "tests/drawn.rs"]
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
pub(crate) use engine::{Engine, Engines, Post, StandingPost, Windows};
pub(crate) use grid::Grid;
pub(crate) use members::Members;
pub(crate) use record::RankRecord;

pub use algorithms::Algorithm;
pub use axis::{Axes, Axis, Ranks};
pub use call::{CallRecord, Op, Reduce};
pub use error::{CommError, Result, named_ranks};
pub use flight::FlightRecorder;
pub use ghost::{CallClock, GhostCall};
pub use group::Group;
pub use ledger::{Ledger, Traffic};
pub use link::{Link, LinkError};
pub use mesh::{Mesh, Profiling, TraceSpan};
pub use processes::{Launch, MeetingError, Processes, RunInputs, Secret};
pub use record::RankWaits;
pub use request::Request;
pub use schedule::{Arrival, CommRound, CommSchedule, Transfer};
pub use shared::{JointCall, JointOperation, PieceMoved, Reduction, SharedPlace};
pub use size::{parse_bytes, readable};
pub use started::{BucketRequest, InPlace};
pub use tag::Tag;
pub use threads::{PanicContext, RankError, StuckReport, World, caught};
pub use trace::{Event, TimeUse, Trace, TraceRun};
