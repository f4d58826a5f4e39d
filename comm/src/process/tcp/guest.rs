//! The meeting, on every rank but 0.
use super::super::frame::{LONGEST, receive, send};
use super::super::launch::Launch;
use super::super::secret::STRANGER;
use super::door::{Door, FAR, PROMPT, reached, resolved, settling};
use super::greeting::{Greeting, MeetingEvent, MeetingReply, Missing, Streams, VERSION, next};
use super::timed::TimedConnection;
use crate::process::run_inputs::{MeetingError, RunInputs};
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tensor::limits;
use tensor::quoted::quoted;

/// A rank other than 0 in the meeting.
pub(super) struct Guest<'a> {
    pub(super) launch: &'a Launch,
    pub(super) address: &'a (String, u16),
    pub(super) limit: Duration,
}

/// Connections of a rank: with all others, with rank 0 for the order, and with all others for shares.
type RankStreams = [Streams; 3];

impl Guest<'_> {
    /// Returns the connections with all other ranks, the connection with rank 0 for the order, and those for
    /// shares; and the number of the meeting.
    pub(super) fn meets(
        &self,
        asked: &RunInputs,
        until: Instant,
    ) -> Result<(RankStreams, u64), MeetingError> {
        let &Launch { rank, ranks, ref secret, .. } = self.launch;
        let limit = self.limit;
        let zero = self.reaches_zero(until)?;
        let (to, events) = channel();
        let meet = || {
            let listener = TcpListener::bind((zero.local_addr()?.ip(), 0))?;
            let address = listener.local_addr()?;
            let door = Door::open(listener, secret, &to)?;
            let asked = asked.clone();
            let timed = TimedConnection::new(&zero, Instant::now() + PROMPT);
            send(timed, &Greeting::Hello { version: VERSION.into(), rank, ranks, asked, at: address })?;
            let answer = receive(&mut TimedConnection::new(&zero, Instant::now() + limit + PROMPT), LONGEST)?;
            Ok((door, zero.peer_addr()?, answer))
        };
        let (_door, at_zero, MeetingReply { why, meeting, at }): (Door, _, MeetingReply) =
            meet().map_err(|why| self.lost(&why))?;
        why.map_or(Ok(()), |why| Err(MeetingError::answered(&why)))?;
        let until = Instant::now() + settling(limit);
        for shares in [false, true] {
            self.reach(&to, (0, at_zero), (meeting, shares), until);
            for (other, at) in (1..rank).zip(&at) {
                self.reach(&to, (other, *at), (meeting, shares), until);
            }
        }
        let verdict = zero.try_clone();
        let patience = settling(limit) + PROMPT;
        limits::spawn(move || {
            let until = Instant::now() + patience;
            let reported = verdict.and_then(|zero| receive(&mut TimedConnection::new(&zero, until), LONGEST));
            drop(to.send(MeetingEvent::Verdict(reported)));
        });
        Ok((self.connected(zero, &events, meeting, until)?, meeting))
    }
    /// Connects with rank 0.
    fn reaches_zero(&self, until: Instant) -> Result<TcpStream, String> {
        let Launch { rank, secret, .. } = self.launch;
        let (host, port) = self.address;
        reached(|| resolved(host, *port, secret), secret, until).map_err(|why| match why.kind() {
            FAR => why.to_string(),
            io::ErrorKind::PermissionDenied => format!(
                "the process at {host}:{port} does not know the secret of rank {rank}; \
                 all ranks need the same secret"
            ),
            STRANGER => format!(
                "another program listens at {host}:{port}, and its answer begins with {}; choose a free MASTER_PORT",
                quoted(&why.to_string())
            ),
            _ => format!("rank {rank} found no rank 0 at {host}:{port} within {:?}: {why}", self.limit),
        })
    }
    fn lost(&self, why: &io::Error) -> String {
        let Launch { rank, .. } = self.launch;
        let (host, port) = self.address;
        format!("rank {rank} lost rank 0 at {host}:{port}: {why}")
    }
    /// Connects with another rank, from a thread.
    fn reach(
        &self,
        to: &Sender<MeetingEvent>,
        (other, at): (usize, SocketAddr),
        (meeting, shares): (u64, bool),
        until: Instant,
    ) {
        let (to, secret, rank) = (to.clone(), self.launch.secret.clone(), self.launch.rank);
        limits::spawn(move || {
            let stream = reached(|| Ok(vec![at]), &secret, until).and_then(|stream| {
                send(TimedConnection::new(&stream, until), &Greeting::Own { meeting, rank, shares })
                    .map(|_| stream)
            });
            drop(to.send(MeetingEvent::Reached(other, shares, stream)));
        });
    }
    /// Waits until all connections are there and rank 0 says so, and reports those that are missing.
    fn connected(
        &self,
        zero: TcpStream,
        events: &Receiver<MeetingEvent>,
        meeting: u64,
        until: Instant,
    ) -> Result<RankStreams, MeetingError> {
        let Launch { rank, ranks, .. } = self.launch;
        let [mut orders, mut streams, mut of_shares] = [(); 3].map(|()| Streams::new());
        let others = (0..*ranks).filter(|other| other != rank);
        let mut missing: BTreeSet<_> = others.flat_map(|other| [(other, false), (other, true)]).collect();
        let mut reported = false;
        loop {
            if !reported && (missing.is_empty() || Instant::now() >= until) {
                let mut missing: Missing = missing.iter().map(|(other, _)| *other).collect();
                missing.dedup();
                let told = send(TimedConnection::new(&zero, Instant::now() + PROMPT), &missing);
                told.map_err(|why| self.lost(&why))?;
                reported = true;
            }
            let far = until + 2 * PROMPT; // the verdict comes before
            match next(events, if reported { far } else { until }) {
                Some(MeetingEvent::Came(stream, Greeting::Own { meeting: theirs, rank: other, shares }))
                    if theirs == meeting && other > *rank && missing.remove(&(other, shares)) =>
                {
                    if shares { &mut of_shares } else { &mut streams }.insert(other, stream);
                }
                Some(MeetingEvent::Reached(other, shares, Ok(stream))) => {
                    missing.remove(&(other, shares));
                    let group = match (shares, other) {
                        (true, _) => &mut of_shares,
                        (false, 0) => &mut orders,
                        (false, _) => &mut streams,
                    };
                    group.insert(other, stream);
                }
                Some(MeetingEvent::Verdict(verdict)) => {
                    let verdict: Option<_> = verdict.map_err(|why| self.lost(&why))?;
                    verdict.map_or(Ok(()), |why| Err(MeetingError::answered(&why)))?;
                    if missing.is_empty() {
                        streams.insert(0, zero);
                        return Ok([streams, orders, of_shares]);
                    }
                    let settling = settling(self.limit);
                    let why =
                        format!("rank {rank} was not connected with all other ranks within {settling:?}");
                    return Err(why.into());
                }
                None if reported => return Err(self.lost(&io::ErrorKind::TimedOut.into()).into()),
                Some(_) | None => {} // another event, or time to report the missing ranks
            }
        }
    }
}
