//! Messages while processes meet, and the events that a meeting waits for.
use crate::process::run_inputs::RunInputs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The first frame of a connection.
#[derive(Serialize, Deserialize)]
pub(crate) enum Greeting {
    /// To rank 0, from a rank that connects.
    Hello { version: String, rank: usize, ranks: usize, asked: RunInputs, at: SocketAddr },
    /// To a rank, from one of a greater number that belongs to this meeting.
    Own { meeting: u64, rank: usize, shares: bool }, // if for shares of all-reduces
}

/// Answer of rank 0 to a connected rank: why they do not meet, or the meeting's number and the ranks'
/// addresses.
#[derive(Serialize, Deserialize)]
pub(crate) struct MeetingReply {
    pub(crate) why: Option<String>,
    pub(crate) meeting: u64,
    pub(crate) at: Vec<SocketAddr>, // addresses where ranks listen, from rank 1 on
}

/// Report to rank 0: the other ranks that a rank is not joined with.
pub(crate) type Missing = Vec<usize>;
/// Last message of rank 0: why they do not meet, if they do not.
pub(super) type MeetingVerdict = Option<String>;

/// An event that a meeting waits for.
pub(super) enum MeetingEvent {
    Came(TcpStream, Greeting),
    /// This process has connected to a rank, for shares or not, or failed to.
    Reached(usize, bool, io::Result<TcpStream>),
    /// A rank has reported its missing ranks to rank 0, or its connection has ended.
    Stands(usize, io::Result<Missing>),
    Verdict(io::Result<MeetingVerdict>),
}

/// Connections by rank.
pub(super) type Streams = BTreeMap<usize, TcpStream>;

/// Name and version that all programs of a meeting must share.
pub(crate) const VERSION: &str = concat!("equipart ", env!("CARGO_PKG_VERSION"));

/// Returns the next event, or `None` if there is none until `until`.
pub(super) fn next(events: &Receiver<MeetingEvent>, until: Instant) -> Option<MeetingEvent> {
    events.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}
