//! How processes find each other: rank 0 listens, all others tell it who they are and where they listen, and learn where the
//! others do; then each two are joined by one connection, and rank 0 with each by one more, for the order of their calls.
use super::frame::{Told, no_frame, receive, send};
use super::launch::Launch;
use super::order::Said;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it is waited between two looks whether a process has come.
const EVERY: Duration = Duration::from_millis(20);
/// How long who has come takes at most to tell who it is.
const PROMPT: Duration = Duration::from_secs(2);

/// The connections of this process, which is one rank, with those of all others.
pub struct Processes {
    rank: usize,
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

/// Who comes to rank 0.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    rank: usize,
    ranks: usize,
    about: String,
    at: String, // where it listens
}

/// What rank 0 tells who came.
#[derive(Serialize, Deserialize)]
struct Answer {
    why: Option<String>, // they do not meet
    meeting: u64,        // by which those of one meeting know each other
    at: Vec<String>,     // where ranks listen, from 1 on
}

/// How others that were met before are reached: of which meeting, by which rank.
type Own = (u64, usize);

impl Processes {
    /// Waits until the processes of all ranks have met, each of which says the same `about` itself: what it was asked to do.
    ///
    /// # Errors
    /// In one sentence: that rank 0 cannot listen, that some did not come in time, or that they do not agree; the same on all that came.
    pub fn meet(launch: &Launch, about: &str, limit: Duration) -> Result<Arc<Self>, String> {
        let until = Instant::now() + limit;
        let [streams, orders] = match launch.rank {
            0 => gathered(launch, about, limit, until)?,
            _ => joined(launch, about, limit, until)?,
        };
        let set = |stream: &TcpStream| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(None)
        };
        let connection = |(rank, stream): (usize, TcpStream)| {
            set(&stream)?;
            let reader = Mutex::new(BufReader::with_capacity(1 << 16, stream.try_clone()?));
            Ok((rank, Connection { stream, reader }))
        };
        let all = || {
            let others = streams.into_iter().map(connection).collect::<io::Result<_>>()?;
            orders.iter().try_for_each(|(_, stream)| set(stream))?;
            Ok(Self { rank: launch.rank, others, orders: orders.into_iter().collect() })
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
        receive(&mut self.orders.get(&0)?).ok()?
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
        self.others().for_each(|(_, stream)| drop(send(stream, &ended, &[]))); // who has gone is told of by its stand-in
    }
    /// Leaves: nobody is heard or told any more.
    pub(crate) fn leave(&self) {
        self.streams().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// Connections, by whose they are.
type Streams = Vec<(usize, TcpStream)>;

/// Rank 0's part: the connections of all others, and those for the order, by rank.
fn gathered(launch: &Launch, about: &str, limit: Duration, until: Instant) -> Result<[Streams; 2], String> {
    let Launch { ranks, host, port, .. } = launch;
    let listener = TcpListener::bind((&**host, *port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = listener.map_err(|why| {
        format!("rank 0 cannot listen at {host}:{port}: {why}; MASTER_ADDR is a host of its own, MASTER_PORT a free port there")
    })?;
    let mut came: BTreeMap<usize, (TcpStream, String)> = BTreeMap::new();
    let mut others = Vec::new(); // who came too much
    let mut why = None;
    while came.len() + 1 < *ranks && why.is_none() {
        if let Some((stream, hello)) = next(&listener, until).and_then(|stream| {
            let hello = hello(&stream).ok()?;
            Some((stream, hello))
        }) {
            why = disagrees(&hello, *ranks, about, &came);
            match why {
                None => drop(came.insert(hello.rank, (stream, hello.at))),
                Some(_) => others.push(stream),
            }
        } else if Instant::now() >= until {
            let missing: Vec<_> =
                (1..*ranks).filter(|rank| !came.contains_key(rank)).map(|r| r.to_string()).collect();
            let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
            why = Some(format!(
                "{ranks} {} did not come to {host}:{port} within {limit:?}",
                missing.join(", ")
            ));
        }
    }
    let meeting = RandomState::new().build_hasher().finish();
    let at = (1..*ranks).map(|rank| came.get(&rank).map_or(String::new(), |(_, at)| at.clone())).collect();
    let answer = Answer { why, meeting, at };
    for stream in came.values().map(|(stream, _)| stream).chain(&others) {
        let _ = send(stream, &answer, &[]); // who has gone is missed in the first call
    }
    answer.why.map_or(Ok(()), Err)?;
    let streams: Streams = came.into_iter().map(|(rank, (stream, _))| (rank, stream)).collect();
    let orders = reached_by(&listener, (streams.len(), meeting), until);
    let orders = orders.ok_or_else(|| format!("rank 0 was not reached again by all within {limit:?}"))?;
    Ok([streams, orders])
}

/// Connections of so many others of this meeting.
fn reached_by(listener: &TcpListener, (others, meeting): (usize, u64), until: Instant) -> Option<Streams> {
    let mut streams = Vec::new();
    while streams.len() < others {
        let stream = next(listener, until.max(Instant::now() + PROMPT))?;
        let own = receive::<Own>(&mut &stream).ok().filter(|(of, _)| *of == meeting);
        streams.extend(own.map(|(_, other)| (other, stream)));
    }
    Some(streams)
}

/// Why who says this does not belong to those who came.
fn disagrees(
    hello: &Hello,
    ranks: usize,
    about: &str,
    came: &BTreeMap<usize, (TcpStream, String)>,
) -> Option<String> {
    let rank = hello.rank;
    if hello.ranks != ranks {
        return Some(format!("rank {rank} has WORLD_SIZE {}, rank 0 has {ranks}", hello.ranks));
    }
    if rank == 0 || came.contains_key(&rank) {
        return Some(format!("two processes have RANK {rank}"));
    }
    let differ = hello.about != about;
    differ.then(|| {
        format!("ranks were asked for different things: rank {rank} for {}, rank 0 for {about}", hello.about)
    })
}

/// The part of every other rank.
fn joined(launch: &Launch, about: &str, limit: Duration, until: Instant) -> Result<[Streams; 2], String> {
    let Launch { rank, ranks, host, port, .. } = launch;
    let nobody = |why| format!("rank {rank} found no rank 0 at {host}:{port} within {limit:?}: {why}");
    let zero = reached(|| (&**host, *port).to_socket_addrs(), until).map_err(nobody)?;
    let fails = |why: io::Error| format!("rank {rank} lost the others at {host}:{port}: {why}");
    let meet = || {
        let listener = TcpListener::bind((zero.local_addr()?.ip(), 0))?;
        listener.set_nonblocking(true)?;
        let (version, about, at) = (VERSION.into(), about.into(), listener.local_addr()?.to_string());
        send(&zero, &Hello { version, rank: *rank, ranks: *ranks, about, at }, &[])?;
        zero.set_read_timeout(Some(limit + PROMPT))?;
        Ok((listener, receive(&mut &zero)?))
    };
    let (listener, Answer { why, meeting, at }) = meet().map_err(fails)?;
    why.map_or(Ok(()), Err)?;
    let at_zero = zero.peer_addr().map_err(fails)?.to_string();
    let reach = |at: &str| {
        let stream = reached(|| at.to_socket_addrs(), until.max(Instant::now() + PROMPT))?;
        send(&stream, &(meeting, *rank) as &Own, &[])?;
        Ok(stream)
    };
    let orders = vec![(0, reach(&at_zero).map_err(fails)?)];
    let mut streams = vec![(0, zero)];
    for (other, at) in (1..*rank).zip(&at) {
        streams.push((other, reach(at).map_err(fails)?));
    }
    let others = reached_by(&listener, (ranks - 1 - rank, meeting), until);
    let none = || format!("rank {rank} was not reached by all other ranks within {limit:?}");
    streams.extend(others.ok_or_else(none)?);
    Ok([streams, orders])
}

/// What programs that meet have in common.
const VERSION: &str = concat!("equipart ", env!("CARGO_PKG_VERSION"));

/// Who somebody is that has come.
fn hello(stream: &TcpStream) -> io::Result<Hello> {
    let hello: Hello = receive(&mut &*stream)?;
    if hello.version == VERSION { Ok(hello) } else { Err(no_frame()) }
}

/// The next who comes until then.
fn next(listener: &TcpListener, until: Instant) -> Option<TcpStream> {
    loop {
        if let Ok((stream, _)) = listener.accept() {
            let prompt = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PROMPT)));
            return prompt.is_ok().then_some(stream);
        }
        if Instant::now() >= until {
            return None;
        }
        sleep(EVERY);
    }
}

/// A connection with who listens there until then.
fn reached<A: Iterator<Item = SocketAddr>>(
    at: impl Fn() -> io::Result<A>,
    until: Instant,
) -> io::Result<TcpStream> {
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(EVERY);
        let mut why = io::Error::new(io::ErrorKind::NotFound, "no such host");
        match at() {
            Err(error) => why = error,
            Ok(all) => {
                for at in all {
                    match TcpStream::connect_timeout(&at, left) {
                        Ok(stream) => return Ok(stream),
                        Err(error) => why = error,
                    }
                }
            }
        }
        if Instant::now() >= until {
            return Err(why);
        }
        sleep(EVERY);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Kills: who is of another version, or comes again for another meeting, and is taken for one of this.
    #[test]
    fn strangers_that_speak_as_these_do_are_not_met() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let come = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let said = |version: &str| {
            let (from, about) = (come(), String::new());
            send(&from, &Hello { version: version.into(), rank: 1, ranks: 2, about, at: String::new() }, &[])
                .unwrap();
            hello(&listener.accept().unwrap().0).map(|hello| hello.rank)
        };
        assert_eq!(said("equipart 0.0.0").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(said(VERSION).unwrap(), 1);
        let again = [(7, 1), (8, 2), (7, 3)].map(|own: Own| {
            let from = come();
            send(&from, &own, &[]).unwrap();
            from
        });
        let streams = reached_by(&listener, (2, 7), Instant::now()).unwrap();
        assert_eq!(streams.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1, 3]);
        drop(again);
    }
}
