//! How processes find each other: rank 0 listens, all others tell it who they are, what they run and where they listen, and
//! learn where the others do; then each two are joined by one connection, and rank 0 with each by one more, for the order of
//! their calls. Rank 0 says when all are joined, or what went wrong: so all go on, or all end with the same sentence.
//!
//! Whatever is waited for comes as an event, from a thread that waits for nothing else: nobody who is late, slow, gone or a
//! stranger keeps the others from being heard.
use super::asked::Asked;
use super::door::{Door, FAR, PROMPT, resolved, settling};
use super::frame::{LONGEST, Timed, Told, receive, send};
use super::greeting::{Answer, Event, Greeting, Missing, Streams, VERSION, Verdict, next};
use super::guest::Guest;
use super::launch::Launch;
use super::order::Said;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::spawn;
use std::time::{Duration, Instant};
use tensor::quoted::sentence;

/// The connections of this process, which is one rank, with those of all others.
pub struct Processes {
    rank: usize,
    here: usize,
    others: BTreeMap<usize, Connection>,
    orders: BTreeMap<usize, TcpStream>, // of rank 0 those to all others, of these that from rank 0
}

struct Connection {
    stream: TcpStream,
    reader: Mutex<BufReader<TcpStream>>, // its stand-in's, run after run
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks())
    }
}

impl Processes {
    /// Waits until the processes of all ranks have met, of which each was asked for the same and has read the same files.
    ///
    /// # Errors
    /// In one sentence: that rank 0 cannot listen, that some did not come in time, died or stopped, that they do not agree, or
    /// do not know the secret; the same on all that came.
    pub fn meet(launch: &Launch, asked: &Asked, limit: Duration) -> Result<Arc<Self>, String> {
        let until = Instant::now() + limit;
        let [streams, orders] = match launch.rank {
            0 => Host { launch, asked, limit }.meets(until)?,
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
            orders.values().try_for_each(set)?;
            Ok(Self { rank: launch.rank, here, others, orders })
        };
        let fails = |why: io::Error| format!("the connections of rank {} fail: {why}", launch.rank);
        all().map(Arc::new).map_err(fails)
    }
    /// This process' rank.
    pub fn rank(&self) -> usize {
        self.rank
    }
    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.others.len() + 1
    }
    /// How many of them are on this machine.
    pub fn here(&self) -> usize {
        self.here
    }
    /// The other ranks, and where they are told something.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, &TcpStream)> {
        self.others.iter().map(|(rank, connection)| (*rank, &connection.stream))
    }
    /// What a rank tells, for who stands in for it.
    pub(super) fn told_by<T>(&self, rank: usize, hear: impl FnOnce(&mut BufReader<TcpStream>) -> T) -> T {
        hear(&mut self.others[&rank].reader.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Rank 0's process says to these others what is done next.
    pub(super) fn say(&self, said: &Said, to: impl Fn(usize) -> bool) {
        let others = self.orders.iter().filter(|(rank, _)| self.rank == 0 && to(**rank));
        others.for_each(|(_, stream)| drop(send(stream, said, &[]))); // who has gone is told of by its stand-in
    }
    /// The next that rank 0's process says; none if it says nothing more.
    pub(super) fn said(&self) -> Said {
        receive(&mut self.orders.get(&0)?, LONGEST).ok()?
    }
    /// A run begins: who takes nothing for so long is late.
    pub(crate) fn begin(&self, limit: Duration) {
        self.streams().for_each(|stream| drop(stream.set_write_timeout(Some(limit))));
    }
    fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        self.others().map(|(_, stream)| stream).chain(self.orders.values())
    }
    /// Tells all that this rank has ended: well, or by this failure of a rank.
    pub(crate) fn end(&self, failure: Option<&(usize, String)>) {
        let ended = Told::Ended(failure.cloned());
        for (_, stream) in self.others() {
            if failure.is_some() {
                drop(stream.set_write_timeout(Some(Duration::from_secs(1)))); // who takes nothing may be the one that stopped
            }
            drop(send(stream, &ended, &[])); // who has gone is told of by its stand-in
        }
    }
    /// Leaves: nobody is heard or told any more.
    pub(crate) fn leave(&self) {
        self.streams().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

fn plural(ranks: &[usize]) -> String {
    let all: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, all.join(", "))
}

/// Rank 0's part.
struct Host<'a> {
    launch: &'a Launch,
    asked: &'a Asked,
    limit: Duration,
}

impl Host<'_> {
    /// The connections of all others, and those for the order, by rank.
    fn meets(&self, until: Instant) -> Result<[Streams; 2], String> {
        let Launch { host, port, secret, .. } = self.launch;
        let (to, events) = channel();
        let open = |at: Vec<SocketAddr>| Door::open(TcpListener::bind(&*at)?, secret, &to);
        let door = resolved(host, *port, secret).and_then(open).map_err(|why| match why.kind() {
            FAR => why.to_string(),
            _ => format!("rank 0 cannot listen at {host}:{port}: {why}; MASTER_ADDR is a host of its own, MASTER_PORT a free port there"),
        })?;
        let (mut streams, mut at, mut refused) = (Streams::new(), BTreeMap::new(), Vec::new());
        let mut why = self.gather((&events, &to), &door, until, &mut streams, &mut at, &mut refused).err();
        let mut meeting = [0; 8];
        if let Err(error) = getrandom::fill(&mut meeting) {
            why = why.or_else(|| Some(format!("no number of the meeting can be drawn: {error}")));
        }
        let answer = Answer { why, meeting: u64::from_le_bytes(meeting), at: at.into_values().collect() };
        for stream in streams.values().chain(&refused) {
            tell(stream, &answer); // who has gone is told of below
        }
        answer.why.map_or(Ok(()), Err)?;
        let joined = self.join(&events, answer.meeting);
        let verdict: Verdict = joined.as_ref().err().cloned();
        for stream in streams.values() {
            tell(stream, &verdict);
        }
        joined.map(|orders| [streams, orders])
    }
    /// Waits until all others have come.
    fn gather(
        &self,
        (events, to): (&Receiver<Event>, &Sender<Event>),
        door: &Door,
        until: Instant,
        streams: &mut Streams,
        at: &mut BTreeMap<usize, SocketAddr>,
        refused: &mut Vec<TcpStream>,
    ) -> Result<(), String> {
        let Launch { ranks, host, port, .. } = self.launch;
        while streams.len() + 1 < *ranks {
            match next(events, until) {
                Some(Event::Came(
                    stream,
                    Greeting::Hello { version, rank, ranks: theirs, asked, at: listens },
                )) => {
                    if version != VERSION {
                        let why = format!("rank 0 is {VERSION}, and this is {}", sentence(&version));
                        tell(&stream, &Answer { why: Some(why), meeting: 0, at: Vec::new() });
                        continue; // it is none of these
                    }
                    let why = if theirs != *ranks {
                        Some(format!("rank {rank} has WORLD_SIZE {theirs}, rank 0 has {ranks}"))
                    } else if rank >= *ranks {
                        continue; // as above
                    } else if rank == 0 || streams.contains_key(&rank) {
                        Some(format!("two processes have RANK {rank}"))
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
                Some(Event::Stands(rank, _)) => return Err(gone(rank)),
                Some(_) => {} // of another meeting
                None => {
                    let missing: Vec<_> = (1..*ranks).filter(|rank| !streams.contains_key(rank)).collect();
                    let (missing, limit, strangers) = (plural(&missing), self.limit, door.strangers());
                    return Err(format!(
                        "{missing} did not come to {host}:{port} within {limit:?}{strangers}"
                    ));
                }
            }
        }
        Ok(())
    }
    /// Waits until all are joined with all: the connections for the order.
    fn join(&self, events: &Receiver<Event>, meeting: u64) -> Result<Streams, String> {
        const MORE: Duration = Duration::from_secs(1); // so that who misses others has said so
        let settling = settling(self.limit);
        let (until, others) = (Instant::now() + settling + MORE, 1..self.launch.ranks);
        let (mut orders, mut stand) = (Streams::new(), BTreeMap::<usize, Missing>::new());
        while orders.len() < others.len() || stand.len() < others.len() {
            match next(events, until) {
                Some(Event::Came(stream, Greeting::Own { meeting: theirs, rank })) => {
                    if theirs == meeting && others.contains(&rank) {
                        orders.entry(rank).or_insert(stream);
                    }
                }
                Some(Event::Stands(rank, missing)) => {
                    let missing = missing.map_err(|_| gone(rank))?;
                    stand.insert(rank, missing);
                }
                Some(_) => {} // too late, or of another meeting
                None => break,
            }
        }
        let silent: Vec<_> = others.clone().filter(|rank| !stand.contains_key(rank)).collect();
        if !silent.is_empty() {
            return Err(format!("{} came, and then did nothing for {settling:?}", plural(&silent)));
        }
        if let Some((rank, missing)) = stand.iter().find(|(_, missing)| !missing.is_empty()) {
            return Err(format!("rank {rank} was not joined with {} within {settling:?}", plural(missing)));
        }
        let lost: Vec<_> = others.filter(|rank| !orders.contains_key(rank)).collect();
        if lost.is_empty() {
            Ok(orders)
        } else {
            Err(format!("rank 0 was not reached again by {}", plural(&lost)))
        }
    }
}

fn gone(rank: usize) -> String {
    format!("rank {rank} came, and ended before all had met, or its connection broke")
}

/// Tells somebody this, if they listen.
fn tell(stream: &TcpStream, what: &impl Serialize) {
    drop(send(Timed::new(stream, Instant::now() + PROMPT), what, &[]));
}

/// Waits for how a rank stands.
fn stands(rank: usize, stream: &TcpStream, to: &Sender<Event>) {
    let (stream, to) = (stream.try_clone(), to.clone());
    spawn(move || {
        let told = stream.and_then(|stream| {
            stream.set_read_timeout(None)?;
            receive(&mut &stream, LONGEST)
        });
        drop(to.send(Event::Stands(rank, told)));
    });
}
