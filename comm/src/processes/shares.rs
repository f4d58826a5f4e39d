//! Shares of all-reduces between processes. Each rank adds up its share of the elements, in rank order, and
//! sends the result to the others, which have sent it their addends of that share and no other elements.
//!
//! A share is complete when all ranks have posted the call, whatever its rank does then, and other ranks wait
//! for it. So shares travel on connections of their own. A thread sends them, so that no rank and no stand-in
//! waits until a share is read; another one reads them, and waits for nothing else.
use super::frame::{LONGEST, read_bytes, receive, send};
use super::greeting::Streams;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::spawn;
use std::time::Duration;

/// Name of an all-reduce, the same on all its ranks: these, and its number among those that they make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct SumName {
    pub(crate) members: Arc<[usize]>,
    pub(crate) number: usize,
}

/// Connections for shares with all other processes.
pub(super) struct Shares {
    links: BTreeMap<usize, ShareLink>,
    arrived: Arc<Arrived>,
}

struct ShareLink {
    stream: TcpStream,
    queue: Mutex<Sender<OwnShare>>,
}

/// A share to send.
type OwnShare = (SumName, Arc<[u8]>);

/// Shares of other ranks that have arrived.
#[derive(Default)]
struct Arrived {
    state: Mutex<ArrivedState>,
    changed: Condvar,
}

#[derive(Default)]
struct ArrivedState {
    shares: BTreeMap<(usize, SumName), Vec<u8>>,
    counts: BTreeMap<(Arc<[usize]>, bool), usize>, // all-reduces of a group, started or not
}

impl Arrived {
    fn state(&self) -> MutexGuard<'_, ArrivedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Reads the shares of a rank until its connection ends, or it sends what is none.
    fn read(&self, rank: usize, mut from: TcpStream) {
        let mut next = || -> io::Result<_> {
            let (name, len): (SumName, usize) = receive(&mut from, LONGEST)?;
            Ok((name, read_bytes(&mut from, len)?))
        };
        while let Ok((name, share)) = next() {
            self.state().shares.insert((rank, name), share);
            self.changed.notify_all();
        }
    }
}

/// Sends shares in their order, and counts their bytes, until the connection ends. When a run ends, all its
/// ranks have taken their shares.
fn pass_on(to: &TcpStream, queue: &Receiver<OwnShare>, bytes: &AtomicUsize) {
    while let Ok((name, share)) = queue.recv() {
        match send(to, &(name, share.len()), &[(&*share).into()]) {
            Ok(sent) => _ = bytes.fetch_add(sent, Relaxed),
            Err(_) => break, // the rank's stand-in reports its process
        }
    }
}

impl Shares {
    /// Sends and reads shares on these connections, by rank; counts the bytes that it sends.
    pub(super) fn new(streams: Streams, bytes: &Arc<AtomicUsize>) -> io::Result<Self> {
        let arrived = Arc::<Arrived>::default();
        let link = |(rank, stream): (usize, TcpStream)| {
            let (queue, waiting) = channel();
            let (arrived, from, to) = (arrived.clone(), stream.try_clone()?, stream.try_clone()?);
            spawn(move || arrived.read(rank, from));
            let bytes = bytes.clone();
            spawn(move || pass_on(&to, &waiting, &bytes));
            Ok((rank, ShareLink { stream, queue: Mutex::new(queue) }))
        };
        let links = streams.into_iter().map(link).collect::<io::Result<_>>()?;
        Ok(Self { links, arrived })
    }
    /// Sends the share of this process' rank to the other ranks of an all-reduce.
    pub(super) fn give(&self, name: &SumName, share: &Arc<[u8]>) {
        for link in name.members.iter().filter_map(|rank| self.links.get(rank)) {
            let queue = link.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = queue.send((name.clone(), share.clone())); // as above
        }
    }
    /// Takes a rank's share, if it arrives within this time.
    pub(super) fn take(&self, rank: usize, name: &SumName, within: Duration) -> Option<Vec<u8>> {
        let (key, state) = ((rank, name.clone()), self.arrived.state());
        let waits = |state: &mut ArrivedState| !state.shares.contains_key(&key);
        let waited = self.arrived.changed.wait_timeout_while(state, within, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.shares.remove(&key)
    }
    /// Counts an all-reduce of these ranks, `started` or not, and returns its number. All its ranks have the
    /// same: both kinds meet in the order in which a rank makes them.
    pub(super) fn count(&self, members: &Arc<[usize]>, started: bool) -> usize {
        let mut state = self.arrived.state();
        let count = state.counts.entry((members.clone(), started)).or_default();
        *count += 1;
        2 * *count + usize::from(started)
    }
    /// Number of shares that have arrived and that nobody has taken.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.arrived.state().shares.len()
    }
    /// Closes all connections.
    pub(super) fn close(&self) {
        self.links.values().for_each(|link| drop(link.stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        self.close(); // the threads have the connections, too
    }
}
