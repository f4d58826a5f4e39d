//! What is said while processes meet, and what who meets waits for.
use super::asked::Asked;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The first frame of a connection.
#[derive(Serialize, Deserialize)]
pub(super) enum Greeting {
    /// To rank 0, of a rank that comes.
    Hello { version: String, rank: usize, ranks: usize, asked: Asked, at: SocketAddr },
    /// To a rank, of one of a greater number, which belongs to this meeting.
    Own { meeting: u64, rank: usize },
}

/// What rank 0 tells who came: why they do not meet, or how they know and find each other.
#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) why: Option<String>,
    pub(super) meeting: u64,
    pub(super) at: Vec<SocketAddr>, // where ranks listen, from 1 on
}

/// What a rank then tells rank 0: which others it is not joined with.
pub(super) type Missing = Vec<usize>;
/// What rank 0 says last: why they do not meet, if they do not.
pub(super) type Verdict = Option<String>;

/// What is waited for.
pub(super) enum Event {
    Came(TcpStream, Greeting),
    /// This process has reached a rank, or has not.
    Reached(usize, io::Result<TcpStream>),
    /// A rank has told rank 0 how it stands, or its connection has ended.
    Stands(usize, io::Result<Missing>),
    Verdict(io::Result<Verdict>),
}

/// Connections, by whose they are.
pub(super) type Streams = BTreeMap<usize, TcpStream>;

/// What programs that meet have in common.
pub(super) const VERSION: &str = concat!("equipart ", env!("CARGO_PKG_VERSION"));

/// The next event until then.
pub(super) fn next(events: &Receiver<Event>, until: Instant) -> Option<Event> {
    events.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}
