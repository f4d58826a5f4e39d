//! Meeting of processes. Rank 0 listens. All others connect to it, send their rank, arguments and listening
//! address, and receive the addresses of the others. Then each pair of ranks is joined by one connection for
//! calls and one for shares of all-reduces, and rank 0 with each other rank by one more, for the order of
//! their calls. Rank 0 reports that all are joined, or the failure: so all ranks go on, or all end with the
//! same sentence.
//!
//! Everything that the meeting waits for arrives as an event, from a thread that waits for nothing else. So
//! no late, slow or exited process and no stranger keeps the others from being heard.
use super::asked::RunInputs;
use super::door::{Door, FAR, PROMPT, resolved, settling};
use super::frame::{LONGEST, ProcessReport, TimedConnection, receive, send};
use super::greeting::{
    Greeting, MeetingEvent, MeetingReply, MeetingVerdict, Missing, Streams, VERSION, next,
};
use super::guest::Guest;
use super::launch::Launch;
use super::order::CallMessage;
use super::shares::Shares;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::spawn;
use std::time::{Duration, Instant};
use tensor::quoted::sentence;

/// Connections of this process, which is one rank, with the processes of all other ranks.
pub struct Processes {
    rank: usize,
    here: usize,
    number: u64,
    others: BTreeMap<usize, Connection>,
    orders: BTreeMap<usize, TcpStream>, // on rank 0, to all others; on each other, from rank 0
    shares: Shares,
    sent: Arc<AtomicUsize>, // bytes, since the meeting
}

struct Connection {
    stream: TcpStream,
    reader: Mutex<BufReader<TcpStream>>, // for the rank's stand-in, run after run
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks())
    }
}

impl Processes {
    /// Waits until the processes of all ranks have met. All must have the same arguments and have read the
    /// same files.
    ///
    /// # Errors
    /// In one sentence: rank 0 cannot listen; some ranks did not arrive in time, exited or stopped; ranks
    /// disagree, or do not know the secret. All ranks that arrived return the same error.
    pub fn meet(launch: &Launch, asked: &RunInputs, limit: Duration) -> Result<Arc<Self>, String> {
        let until = Instant::now() + limit;
        let ([streams, orders, shares], number) = match launch.rank {
            0 => MeetingHost { launch, asked, limit }.meets(until)?,
            _ => Guest { launch, limit }.meets(asked, until)?,
        };
        let set = |stream: &TcpStream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(None)?;
            stream.set_read_timeout(None)
        };
        let connection = |(rank, stream): (usize, TcpStream)| {
            set(&stream)?;
            let reader = Mutex::new(BufReader::with_capacity(1 << 16, stream.try_clone()?));
            Ok((rank, Connection { stream, reader }))
        };
        let is_here = |stream: &&TcpStream| {
            let ends = stream.peer_addr().and_then(|peer| Ok((peer.ip(), stream.local_addr()?.ip())));
            ends.is_ok_and(|(theirs, own)| theirs == own)
        };
        let here = launch.here.unwrap_or_else(|| 1 + streams.values().filter(is_here).count());
        let all = || {
            let others = streams.into_iter().map(connection).collect::<io::Result<_>>()?;
            orders.values().chain(shares.values()).try_for_each(set)?;
            let sent = Arc::default();
            let shares = Shares::new(shares, &sent)?;
            Ok(Self { rank: launch.rank, here, number, others, orders, shares, sent })
        };
        let fails = |why: io::Error| format!("the connections of rank {} fail: {why}", launch.rank);
        all().map(Arc::new).map_err(fails)
    }
    /// This process' rank.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.others.len() + 1
    }
    /// A number that rank 0 has drawn for this meeting: the same in all processes, and another in each run.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// Number of ranks on this machine.
    pub fn here(&self) -> usize {
        self.here
    }
    /// The other ranks, with the connection to each.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, &TcpStream)> {
        self.others.iter().map(|(rank, connection)| (*rank, &connection.stream))
    }
    /// Runs `hear` on the connection that a rank's reports arrive on; for the rank's stand-in.
    pub(super) fn with_reader<T>(&self, rank: usize, hear: impl FnOnce(&mut BufReader<TcpStream>) -> T) -> T {
        hear(&mut self.others[&rank].reader.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Sends the next call in the order to the ranks that `to` selects; only rank 0's process sends.
    pub(super) fn say(&self, message: &CallMessage, to: impl Fn(usize) -> bool) {
        let others = self.orders.iter().filter(|(rank, _)| self.rank == 0 && to(**rank));
        // a failed process is reported by its stand-in
        others.for_each(|(_, stream)| self.count(send(stream, message, &[]).unwrap_or(0)));
    }
    /// Receives the next call in rank 0's order; `None` if there are no more.
    pub(super) fn message(&self) -> CallMessage {
        receive(&mut self.orders.get(&0)?, LONGEST).ok()?
    }
    /// Bytes that this process has sent to others for calls, with all that surrounds elements.
    pub fn sent_bytes(&self) -> usize {
        self.sent.load(Relaxed)
    }
    /// Counts bytes that were sent.
    pub(super) fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes, Relaxed);
    }
    /// The shares of all-reduces between these processes.
    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }
    /// Begins a run: a process that receives nothing for `limit` is late.
    pub(crate) fn begin(&self, limit: Duration) {
        self.streams().for_each(|stream| drop(stream.set_write_timeout(Some(limit))));
    }
    fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        self.others().map(|(_, stream)| stream).chain(self.orders.values())
    }
    /// Reports to all processes that this rank has ended, and the failure of a rank if it ended by one.
    pub(crate) fn end(&self, failure: Option<&(usize, String)>) {
        let ended = ProcessReport::Ended(failure.cloned());
        for (_, stream) in self.others() {
            if failure.is_some() {
                // the receiver may be the process that stopped
                drop(stream.set_write_timeout(Some(Duration::from_secs(1))));
            }
            drop(send(stream, &ended, &[])); // a failed process is reported by its stand-in
        }
    }
    /// Leaves: closes all connections.
    pub(crate) fn leave(&self) {
        self.streams().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.shares.close();
    }
}

fn plural(ranks: &[usize]) -> String {
    let all: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, all.join(", "))
}

/// Rank 0 in the meeting.
struct MeetingHost<'a> {
    launch: &'a Launch,
    asked: &'a RunInputs,
    limit: Duration,
}

impl MeetingHost<'_> {
    /// Returns the connections with all other ranks, those for the order and those for shares, by rank; and
    /// the number of the meeting.
    fn meets(&self, until: Instant) -> Result<([Streams; 3], u64), String> {
        let Launch { host, port, secret, .. } = self.launch;
        let (to, events) = channel();
        let open = |at: Vec<SocketAddr>| Door::open(TcpListener::bind(&*at)?, secret, &to);
        let door = resolved(host, *port, secret).and_then(open).map_err(|why| match why.kind() {
            FAR => why.to_string(),
            _ => format!(
                "rank 0 cannot listen at {host}:{port}: {why}; \
                 MASTER_ADDR must be a host name of its machine, MASTER_PORT a free port there"
            ),
        })?;
        let (mut streams, mut at, mut refused) = (Streams::new(), BTreeMap::new(), Vec::new());
        let mut why = self.gather((&events, &to), &door, until, &mut streams, &mut at, &mut refused).err();
        let mut meeting = [0; 8];
        if let Err(error) = getrandom::fill(&mut meeting) {
            why = why.or_else(|| Some(format!("rank 0 cannot draw a number for the meeting: {error}")));
        }
        let answer =
            MeetingReply { why, meeting: u64::from_le_bytes(meeting), at: at.into_values().collect() };
        for stream in streams.values().chain(&refused) {
            tell(stream, &answer); // an exited process is reported below
        }
        answer.why.map_or(Ok(()), Err)?;
        let joined = self.join(&events, answer.meeting);
        let verdict: MeetingVerdict = joined.as_ref().err().cloned();
        for stream in streams.values() {
            tell(stream, &verdict);
        }
        joined.map(|[orders, shares]| ([streams, orders, shares], answer.meeting))
    }
    /// Waits until all other ranks have connected.
    fn gather(
        &self,
        (events, to): (&Receiver<MeetingEvent>, &Sender<MeetingEvent>),
        door: &Door,
        until: Instant,
        streams: &mut Streams,
        at: &mut BTreeMap<usize, SocketAddr>,
        refused: &mut Vec<TcpStream>,
    ) -> Result<(), String> {
        let Launch { ranks, host, port, .. } = self.launch;
        while streams.len() + 1 < *ranks {
            match next(events, until) {
                Some(MeetingEvent::Came(
                    stream,
                    Greeting::Hello { version, rank, ranks: theirs, asked, at: listens },
                )) => {
                    if version != VERSION {
                        let why =
                            format!("rank 0 runs {VERSION}, and this process runs {}", sentence(&version));
                        tell(&stream, &MeetingReply { why: Some(why), meeting: 0, at: Vec::new() });
                        continue; // it is no rank of this run
                    }
                    let why = if theirs != *ranks {
                        Some(format!("rank {rank} is one of {theirs} ranks, rank 0 one of {ranks}"))
                    } else if rank >= *ranks {
                        continue; // as above
                    } else if rank == 0 || streams.contains_key(&rank) {
                        Some(format!("two processes have rank {rank}"))
                    } else {
                        self.asked.differs(&asked, rank)
                    };
                    if let Some(why) = why {
                        refused.push(stream);
                        return Err(why);
                    }
                    stands(rank, &stream, to);
                    streams.insert(rank, stream);
                    at.insert(rank, listens);
                }
                Some(MeetingEvent::Stands(rank, _)) => return Err(exited(rank)),
                Some(_) => {} // of another meeting
                None => {
                    let missing: Vec<_> = (1..*ranks).filter(|rank| !streams.contains_key(rank)).collect();
                    let (missing, limit, rejected) = (plural(&missing), self.limit, door.rejected());
                    return Err(format!(
                        "{missing} did not connect to {host}:{port} within {limit:?}{rejected}"
                    ));
                }
            }
        }
        Ok(())
    }
    /// Waits until every rank is joined with all others; returns the connections for the order and for
    /// shares.
    fn join(&self, events: &Receiver<MeetingEvent>, meeting: u64) -> Result<[Streams; 2], String> {
        const MORE: Duration = Duration::from_secs(1); // so that a rank that misses others has reported them
        let settling = settling(self.limit);
        let (until, others) = (Instant::now() + settling + MORE, 1..self.launch.ranks);
        let (mut joined, mut stand) = ([(); 2].map(|()| Streams::new()), BTreeMap::<usize, Missing>::new());
        let all = others.len();
        while joined.iter().any(|joined| joined.len() < all) || stand.len() < all {
            match next(events, until) {
                Some(MeetingEvent::Came(stream, Greeting::Own { meeting: theirs, rank, shares })) => {
                    if theirs == meeting && others.contains(&rank) {
                        joined[usize::from(shares)].entry(rank).or_insert(stream);
                    }
                }
                Some(MeetingEvent::Stands(rank, missing)) => {
                    let missing = missing.map_err(|_| exited(rank))?;
                    stand.insert(rank, missing);
                }
                Some(_) => {} // too late, or of another meeting
                None => break,
            }
        }
        let silent: Vec<_> = others.clone().filter(|rank| !stand.contains_key(rank)).collect();
        if !silent.is_empty() {
            return Err(format!("{} connected, and then sent nothing for {settling:?}", plural(&silent)));
        }
        if let Some((rank, missing)) = stand.iter().find(|(_, missing)| !missing.is_empty()) {
            return Err(format!(
                "rank {rank} was not connected with {} within {settling:?}",
                plural(missing)
            ));
        }
        let lacks = |rank: &usize| joined.iter().any(|joined| !joined.contains_key(rank));
        let lost: Vec<_> = others.filter(lacks).collect();
        if lost.is_empty() {
            Ok(joined)
        } else {
            Err(format!("rank 0 did not get all connections from {}", plural(&lost)))
        }
    }
}

fn exited(rank: usize) -> String {
    format!("rank {rank} connected, and exited before all ranks had met, or its connection broke")
}

/// Sends a message, and ignores a failure to send it.
fn tell(stream: &TcpStream, what: &impl Serialize) {
    drop(send(TimedConnection::new(stream, Instant::now() + PROMPT), what, &[]));
}

/// Waits, in a thread of its own, for a rank's report of its missing ranks.
fn stands(rank: usize, stream: &TcpStream, to: &Sender<MeetingEvent>) {
    let (stream, to) = (stream.try_clone(), to.clone());
    spawn(move || {
        let reported = stream.and_then(|stream| {
            stream.set_read_timeout(None)?;
            receive(&mut &stream, LONGEST)
        });
        drop(to.send(MeetingEvent::Stands(rank, reported)));
    });
}
