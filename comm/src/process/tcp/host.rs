//! The meeting, on rank 0, which listens and decides.
use super::super::frame::{LONGEST, receive, send};
use super::super::launch::Launch;
use super::door::{Door, FAR, PROMPT, resolved, settling};
use super::greeting::{
    Greeting, MeetingEvent, MeetingReply, MeetingVerdict, Missing, Streams, VERSION, next,
};
use super::timed::TimedConnection;
use crate::process::run_inputs::{RunInputs, drawn};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tensor::limits;
use tensor::quoted::sentence;

/// Time that ranks have to connect once the run is known to fail, so that they are told why.
const LATE: Duration = Duration::from_secs(1);

fn plural(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// Rank 0 in the meeting.
pub(super) struct MeetingHost<'a> {
    pub(super) launch: &'a Launch,
    pub(super) address: &'a (String, u16),
    pub(super) asked: &'a RunInputs,
    pub(super) limit: Duration,
}

impl MeetingHost<'_> {
    /// Returns the connections with all other ranks, those for the order and those for shares, by rank; and
    /// the number of the meeting.
    pub(super) fn meets(&self, until: Instant) -> Result<([Streams; 3], u64), String> {
        let (host, port) = self.address;
        let secret = &self.launch.secret;
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
        let gathered = self.gather((&events, &to), &door, until, &mut streams, &mut at, &mut refused);
        let mut why = self.asked.refused.clone().or(gathered);
        let meeting = drawn().unwrap_or_else(|error| {
            why.get_or_insert(error);
            0
        });
        let answer = MeetingReply { why, meeting, at: at.into_values().collect() };
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
    /// Waits until all other ranks have connected, or [`LATE`] after the first reason why this run fails,
    /// which it returns; all that connect are answered.
    fn gather(
        &self,
        (events, to): (&Receiver<MeetingEvent>, &Sender<MeetingEvent>),
        door: &Door,
        mut until: Instant,
        streams: &mut Streams,
        at: &mut BTreeMap<usize, SocketAddr>,
        refused: &mut Vec<TcpStream>,
    ) -> Option<String> {
        let (host, port) = self.address;
        let ranks = &self.launch.ranks;
        let mut first = None;
        while streams.len() + 1 < *ranks {
            let why = match next(events, until) {
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
                    if theirs != *ranks {
                        refused.push(stream);
                        Some(format!("rank {rank} is one of {theirs} ranks, rank 0 one of {ranks}"))
                    } else if rank >= *ranks {
                        continue; // as above
                    } else if rank == 0 || streams.contains_key(&rank) {
                        refused.push(stream);
                        Some(format!("two processes have rank {rank}"))
                    } else {
                        stands(rank, &stream, to);
                        streams.insert(rank, stream);
                        at.insert(rank, listens);
                        self.asked.differs(&asked, rank)
                    }
                }
                Some(MeetingEvent::Stands(rank, _)) => Some(exited(rank)),
                Some(_) => None, // of another meeting
                None if first.is_some() => return first,
                None => {
                    let missing: Vec<_> = (1..*ranks).filter(|rank| !streams.contains_key(rank)).collect();
                    let (missing, limit, rejected) = (plural(&missing), self.limit, door.rejected());
                    return Some(format!(
                        "{missing} did not connect to {host}:{port} within {limit:?}{rejected}"
                    ));
                }
            };
            if let (None, Some(why)) = (&first, why) {
                (first, until) = (Some(why), until.min(Instant::now() + LATE));
            }
        }
        first
    }
    /// Waits until every rank is joined with all others; returns the connections for the order and for
    /// shares.
    fn join(&self, events: &Receiver<MeetingEvent>, meeting: u64) -> Result<[Streams; 2], String> {
        const MORE: Duration = Duration::from_secs(1); // so that a rank that misses others has reported them
        let settling = settling(self.limit);
        let (until, others) = (Instant::now() + settling + MORE, 1..self.launch.ranks);
        let (mut joined, mut stand) = ([(); 2].map(|()| Streams::new()), BTreeMap::<usize, Missing>::new());
        let needed = others.len();
        while joined.iter().any(|joined| joined.len() < needed) || stand.len() < needed {
            match next(events, until) {
                Some(MeetingEvent::Came(stream, Greeting::Own { meeting: theirs, rank, shares })) => {
                    if theirs == meeting && others.contains(&rank) {
                        joined[usize::from(shares)].entry(rank).or_insert(stream);
                    }
                }
                Some(MeetingEvent::Stands(rank, missing)) => {
                    let missing = missing.map_err(|_| exited(rank))?;
                    let ranks = self.launch.ranks;
                    // strictly ascending, so no more than there are
                    if !missing.is_sorted_by(|a, b| a < b)
                        || missing.last().is_some_and(|last| *last >= ranks)
                    {
                        return Err(format!(
                            "rank {rank} reports ranks that it misses, and not ranks below {ranks} in order"
                        ));
                    }
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
    drop(send(TimedConnection::new(stream, Instant::now() + PROMPT), what));
}

/// Waits, in a thread of its own, for a rank's report of its missing ranks.
fn stands(rank: usize, stream: &TcpStream, to: &Sender<MeetingEvent>) {
    let stream = stream.try_clone();
    let to = to.clone();
    limits::spawn(move || {
        let reported = stream.and_then(|stream| {
            stream.set_read_timeout(None)?;
            receive(&mut &stream, LONGEST)
        });
        drop(to.send(MeetingEvent::Stands(rank, reported)));
    });
}
