//! Shares of all-reduces between processes. Each rank adds up its share of the elements, in rank order, and
//! sends the result to the others, which have sent it their addends of that share and no other elements.
//!
//! A share is complete when all ranks have posted the call, whatever its rank does then, and other ranks wait
//! for it. So shares travel on connections of their own, and a thread sends them: no rank and no stand-in
//! waits until a share is read. Each rank reads the shares that it waits for.
use super::connection::{Connection, Connections, Incoming, PatientReader};
use super::frame::{encoded, frame_bytes, read_bytes, receive_head, send_frame};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensor::limits;

/// Interval at which a rank that waits for a share checks if the run has failed.
const EVERY: Duration = Duration::from_millis(20);

/// Name of an all-reduce, the same on all its ranks: these, and its number among those that they make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SumName {
    pub(crate) members: Arc<[usize]>,
    pub(crate) number: usize,
}

/// Connections for shares with all other processes.
pub(super) struct Shares {
    links: BTreeMap<usize, ShareLink>,
    counts: Mutex<BTreeMap<(Arc<[usize]>, bool), usize>>, // all-reduces of a group, started or not
}

struct ShareLink {
    connection: Arc<dyn Connection>,
    queue: Mutex<Sender<OwnShare>>,
    arrived: Mutex<ArrivedShares>,
}

/// A share to send.
type OwnShare = (SumName, Arc<[u8]>);

/// Shares of a rank: those that come, and those that came before this rank waited for them.
pub(super) struct ArrivedShares {
    from: BufReader<Incoming>,
    early: BTreeMap<SumName, Vec<u8>>,
}

impl ArrivedShares {
    /// Reads from this connection.
    pub(super) fn new(connection: &Arc<dyn Connection>) -> Self {
        Self { from: Incoming::reader(connection), early: BTreeMap::new() }
    }
    /// Reads the next share, until that of this name comes; passes it, with its length, to `read`.
    pub(super) fn take(
        &mut self,
        name: &SumName,
        waits_on: &mut dyn FnMut() -> bool,
        read: &mut dyn FnMut(usize, &mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(share) = self.early.remove(name) {
            return read(share.len(), &mut &*share);
        }
        let mut from = PatientReader { from: &mut self.from, waits_on };
        loop {
            let (next, len): (SumName, usize) = receive_head(&mut from)?;
            if next == *name {
                return read(len, &mut from);
            }
            self.early.insert(next, read_bytes(&mut from, len)?);
        }
    }
}

/// Sends shares in their order until the connection ends, and counts their bytes before: a rank that has
/// taken its share may end the run. When a run ends, all its ranks have taken their shares.
fn pass_on(to: &dyn Connection, queue: &Receiver<OwnShare>, bytes: &AtomicUsize) {
    while let Ok((name, share)) = queue.recv() {
        let head = encoded(&(name, share.len()));
        let elements = [(&*share).into()];
        bytes.fetch_add(frame_bytes(&head, &elements), Relaxed);
        if send_frame(to, &head, &elements).is_err() {
            break; // the rank's stand-in reports its process
        }
    }
}

impl Shares {
    /// Sends and reads shares on these connections, by rank; counts the bytes that it sends.
    pub(super) fn new(connections: Connections, bytes: &Arc<AtomicUsize>) -> io::Result<Self> {
        let link = |(rank, connection): (usize, Arc<dyn Connection>)| {
            connection.limit([None, Some(EVERY)])?;
            let (queue, waiting) = channel();
            let (to, bytes) = (connection.clone(), bytes.clone());
            limits::spawn(move || pass_on(&*to, &waiting, &bytes));
            let arrived = Mutex::new(ArrivedShares::new(&connection));
            Ok((rank, ShareLink { connection, queue: Mutex::new(queue), arrived }))
        };
        let links = connections.into_iter().map(link).collect::<io::Result<_>>()?;
        Ok(Self { links, counts: Mutex::default() })
    }
    /// Sends the share of this process' rank to the other ranks of an all-reduce.
    pub(super) fn give(&self, name: &SumName, share: &Arc<[u8]>) {
        for link in name.members.iter().filter_map(|rank| self.links.get(rank)) {
            let _ = locked(&link.queue).send((name.clone(), share.clone())); // as above
        }
    }
    /// Waits for a rank's share, as long as `waits_on` says, and passes it to `read`, with its length in
    /// bytes.
    ///
    /// # Errors
    /// If the wait is over, or the connection broke.
    pub(super) fn take(
        &self,
        rank: usize,
        name: &SumName,
        waits_on: &mut dyn FnMut() -> bool,
        read: &mut dyn FnMut(usize, &mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        locked(&self.links[&rank].arrived).take(name, waits_on, read)
    }
    /// Counts an all-reduce of these ranks, `started` or not, and returns its number. All its ranks have the
    /// same: both kinds meet in the order in which a rank makes them.
    pub(super) fn count(&self, members: &Arc<[usize]>, started: bool) -> usize {
        let mut counts = locked(&self.counts);
        let count = counts.entry((members.clone(), started)).or_default();
        *count += 1;
        2 * *count + usize::from(started)
    }
    /// Number of shares that have arrived and that nobody has taken.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.links.values().map(|link| locked(&link.arrived).early.len()).sum()
    }
    /// Closes all connections.
    pub(super) fn close(&self) {
        self.links.values().for_each(|link| link.connection.close(Shutdown::Both));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shares {
    fn drop(&mut self) {
        self.close(); // the threads have the connections, too
    }
}
