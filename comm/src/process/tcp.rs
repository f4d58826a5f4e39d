//! TCP as the carrier. Rank 0 listens. All others connect to it, send their rank, arguments and listening
//! address, and receive the addresses of the others. Then each pair of ranks is joined by one connection for
//! calls and one for shares of all-reduces, and rank 0 with each other rank by one more, for the order of
//! their calls. Rank 0 reports that all are joined, or the failure: so all ranks go on, or all end with the
//! same sentence.
//!
//! Everything that the meeting waits for arrives as an event, from a thread that waits for nothing else. So
//! no late, slow or exited process and no stranger keeps the others from being heard.
pub(super) mod door;
pub(super) mod greeting;
mod guest;
mod host;
pub(super) mod timed;

use super::connection::{Carrier, CarrierInfo, Connection, Connections, Met};
use super::launch::Launch;
use crate::process::run_inputs::{MeetingError, RunInputs};
use guest::Guest;
use host::MeetingHost;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// TCP among the carriers.
pub(super) const INFO: CarrierInfo =
    CarrierInfo { carries: |_| true, needs_address: true, meets, finalize: || {} };

/// TCP in a process that has met others: the connections are all there is of it.
struct Tcp;

impl Carrier for Tcp {}

/// Waits until the processes of all ranks have met.
fn meets(launch: &Launch, asked: &RunInputs, limit: Duration) -> Result<Met, MeetingError> {
    let until = Instant::now() + limit;
    let Some(address) = &launch.address else {
        return Err(format!("rank {} has no address at which ranks meet", launch.rank).into());
    };
    let (streams, number) = match launch.rank {
        0 => MeetingHost { launch, address, asked, limit }.meets(until)?,
        _ => Guest { launch, address, limit }.meets(asked, until)?,
    };
    let is_here = |stream: &&TcpStream| {
        let ends = stream.peer_addr().and_then(|peer| Ok((peer.ip(), stream.local_addr()?.ip())));
        ends.is_ok_and(|(theirs, own)| theirs == own)
    };
    let here = launch.here.unwrap_or_else(|| 1 + streams[0].values().filter(is_here).count());
    let connection = |(rank, stream): (usize, TcpStream)| {
        stream.set_nodelay(true).map(|()| (rank, Arc::new(stream) as Arc<dyn Connection>))
    };
    let connections = streams.map(|all| all.into_iter().map(connection).collect::<io::Result<Connections>>());
    let [calls, orders, shares] = connections;
    let all = || Ok([calls?, orders?, shares?]);
    let fails = |why: io::Error| format!("the connections of rank {} fail: {why}", launch.rank);
    Ok(Met { carrier: Box::new(Tcp), connections: all().map_err(fails)?, here, number })
}

impl Connection for TcpStream {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&mut &*self).write_all(bytes)
    }
    fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(to)
    }
    fn limit(&self, [sends, receives]: [Option<Duration>; 2]) -> io::Result<()> {
        self.set_write_timeout(sends)?;
        self.set_read_timeout(receives)
    }
    fn close(&self, how: Shutdown) {
        let _ = self.shutdown(how); // it may be closed
    }
}
