//! Carriers of what processes send, and the connections between two processes that they make.
use super::launch::Launch;
use crate::process::run_inputs::{MeetingError, RunInputs};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

/// Connection with another process. Bytes arrive in the order in which they were sent.
pub(super) trait Connection: Send + Sync {
    /// Sends all bytes.
    ///
    /// # Errors
    /// As [`gave_up`] says if the other process takes nothing for as long as a send may wait.
    fn send(&self, bytes: &[u8]) -> io::Result<()>;
    /// Receives at least one byte, or none if the other end is closed.
    ///
    /// # Errors
    /// As [`gave_up`] says if nothing arrives for as long as a receive may wait.
    fn receive(&self, to: &mut [u8]) -> io::Result<usize>;
    /// Sets how long a send and a receive may wait, in this order; `None`: for ever.
    fn limit(&self, waits: [Option<Duration>; 2]) -> io::Result<()>;
    /// Closes this end.
    fn close(&self, how: Shutdown);
}

/// Carrier of all connections of a process.
pub(super) trait Carrier: Send + Sync {
    /// Takes note that this process' rank begins to wait for others, or has waited.
    fn waits(&self, _: bool) {}
    /// Takes note that this process leaves, while others may still run or have stopped.
    fn leave(&self) {}
}

/// How processes meet over a carrier.
pub(super) struct CarrierInfo {
    /// True if it carries what ranks send whose launcher sets this variable to their rank.
    pub(super) carries: fn(&str) -> bool,
    /// True if ranks need the address of rank 0 to meet.
    pub(super) needs_address: bool,
    /// Waits, as long as the limit, until the processes of all ranks have met.
    pub(super) meets: fn(&Launch, &RunInputs, Duration) -> Result<Met, MeetingError>,
    /// Ends the carrier in this process, after the last output.
    pub(super) finalize: fn(),
}

/// Connections by rank.
pub(super) type Connections = std::collections::BTreeMap<usize, Arc<dyn Connection>>;

/// Connections of ranks that have met.
pub(super) struct Met {
    pub(super) carrier: Box<dyn Carrier>,
    /// For calls, for their order, and for shares.
    pub(super) connections: [Connections; 3],
    /// Number of ranks on this machine.
    pub(super) here: usize,
    /// Number of the meeting.
    pub(super) number: u64,
}

/// Returns true if a send or a receive ended because it waited too long.
pub(super) fn gave_up(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl Write for &dyn Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.send(from).map(|()| from.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Receiving end of a connection.
pub(super) struct Incoming(pub(super) Arc<dyn Connection>);

impl Incoming {
    /// Returns a reader of a connection that reads small frames together.
    pub(super) fn reader(connection: &Arc<dyn Connection>) -> BufReader<Self> {
        BufReader::with_capacity(1 << 16, Self(connection.clone()))
    }
}

impl Read for Incoming {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.receive(to)
    }
}

/// A reader that asks, whenever nothing has arrived for a while, if it should wait on.
pub(super) struct PatientReader<'a, R> {
    pub(super) from: R,
    pub(super) waits_on: &'a mut dyn FnMut() -> bool,
}

impl<R: Read> Read for PatientReader<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.from.read(to) {
                Err(why) if gave_up(&why) && (self.waits_on)() => {}
                read => return read,
            }
        }
    }
}
