//! Ranks as processes, one rank each, joined by TCP.
//!
//! Each process has the whole world as threads has it: its own rank, which runs the program, and for every other rank a
//! stand-in, a thread that makes the calls which that rank tells of, in its order, on the same engines. So who is late, has
//! failed, means something else or waits in a ring is found and named as among threads, in every process, and sums are taken
//! by the same code in the same order: the same bits.
//!
//! A rank tells all others of each call before it makes it: a frame with the call, its sentence, and those of the elements it
//! gives that the other's rank takes. A stand-in takes nothing: of what ranks do together a process does its own rank's part
//! alone. Frames of a rank are read in order, so a stand-in may wait in a call while later frames wait in the connection;
//! that ends, since the rank which sent them has come out of that call, so all its other ranks have told of it.
//!
//! | file | holds |
//! |---|---|
//! | `launch.rs` | which rank a process is, by torchrun's variables |
//! | `secret.rs` | how both ends of a connection show that they know one secret |
//! | `door.rs` | who connects is served, each by itself and in time |
//! | `asked.rs` | what ranks must have in common: arguments, and files that they read |
//! | `meeting.rs`, `guest.rs` | how processes find each other, on rank 0 and on the others; their connections |
//! | `greeting.rs` | what is said while they meet |
//! | `frame.rs` | what processes tell each other |
//! | `check.rs` | what another process tells is input until it is checked |
//! | `telling.rs` | the engine of a process' own rank |
//! | `order.rs` | which call comes next, where cards do together what ranks do |
//! | `stand_in.rs` | what is done in place of a rank of another process |
mod asked;
mod check;
mod door;
mod frame;
mod greeting;
mod guest;
mod launch;
mod meeting;
mod order;
mod secret;
mod stand_in;
mod telling;
#[cfg(all(test, not(loom)))]
mod tests;

pub use asked::Asked;
pub use launch::Launch;
pub use meeting::Processes;
pub(crate) use order::Order;
pub use secret::Secret;
pub(crate) use stand_in::StandIn;
pub(crate) use telling::Telling;
