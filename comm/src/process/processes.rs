//! Processes that have met: this one, which is one rank, and its connections with those of all other ranks.
use super::carriers::{self, CARRIERS};
use super::connection::{Carrier, Connection, Connections, Incoming, Met, gave_up};
use super::forms::{ArrivedForms, SentForms};
use super::frame::{CallMessage, FailedEnd, ProcessReport, encoded, receive_head, send_frame};
use super::launch::Launch;
use super::shares::Shares;
use crate::process::run_inputs::{MeetingError, RunInputs};
use crate::{FlightRecorder, RankRecord};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections of this process, which is one rank, with the processes of all other ranks.
pub struct Processes {
    rank: usize,
    here: usize,
    number: u64,
    carrier: Box<dyn Carrier>,
    others: BTreeMap<usize, CallConnection>,
    orders: Connections, // on rank 0, to all others; on each other, from rank 0
    shares: Shares,
    sent: Arc<AtomicUsize>, // bytes, since the meeting
    left: AtomicBool,
    calls: Mutex<Option<Arc<RankRecord>>>, // of this process' rank, while it runs
}

struct CallConnection {
    connection: Arc<dyn Connection>,
    sent: Mutex<SentForms>,
    heard: Mutex<Heard>, // for the rank's stand-in, run after run
}

/// Reports of a rank that arrive.
pub(super) struct Heard {
    pub(super) from: BufReader<Incoming>,
    pub(super) forms: ArrivedForms,
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks())
    }
}

impl Processes {
    /// Reads the rank of this process from its launcher's variables; `None` if no launcher started several.
    ///
    /// # Errors
    /// In one sentence: a variable is missing, is not a valid number, or contradicts another launcher's.
    pub fn launch() -> Result<Option<Launch>, String> {
        Launch::of_process(|variable| carriers::of(variable).needs_address)
    }
    /// Waits until the processes of all ranks have met. All must have the same arguments and have read the
    /// same files.
    ///
    /// # Errors
    /// In one sentence: rank 0 cannot listen; some ranks did not arrive in time, exited or stopped; ranks
    /// disagree, or do not know the secret. All ranks that arrived return the same error.
    pub fn meet(launch: &Launch, asked: &RunInputs, limit: Duration) -> Result<Arc<Self>, MeetingError> {
        let met = (carriers::of(launch.variables[0]).meets)(launch, asked, limit)?;
        let fails = |why| format!("the connections of rank {} fail: {why}", launch.rank).into();
        Self::joined(launch.rank, met).map(Arc::new).map_err(fails)
    }
    /// Meets the other ranks to say why this one cannot begin, so that they end with it. Returns true if rank
    /// 0's process tells the user why.
    pub fn refuse(launch: &Launch, why: &str) -> bool {
        const PATIENCE: Duration = Duration::from_secs(2); // the others may not come
        let asked = RunInputs { refused: Some(why.to_owned()), ..RunInputs::default() };
        Self::meet(launch, &asked, PATIENCE).is_err_and(|error| error.told)
    }
    fn joined(rank: usize, met: Met) -> io::Result<Self> {
        let Met { carrier, connections: [calls, orders, shares], here, number } = met;
        let with = |(rank, connection): (usize, Arc<dyn Connection>)| {
            connection.limit([None; 2])?;
            let heard = Heard { from: Incoming::reader(&connection), forms: ArrivedForms::default() };
            Ok((rank, CallConnection { connection, sent: Mutex::default(), heard: Mutex::new(heard) }))
        };
        let others = calls.into_iter().map(with).collect::<io::Result<_>>()?;
        orders.values().try_for_each(|order| order.limit([None; 2]))?;
        let sent = Arc::default();
        let shares = Shares::new(shares, &sent)?;
        let left = AtomicBool::new(false);
        Ok(Self { rank, here, number, carrier, others, orders, shares, sent, left, calls: Mutex::default() })
    }
    /// Ends the carriers, MPI once all processes have come this far. Call this after the last output: MPI's
    /// launcher may end a process as soon as another one has failed.
    pub fn finalize() {
        for carrier in CARRIERS {
            (carrier.finalize)();
        }
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
    /// Reports to the process of another rank, with the elements that it takes. A report that the rank does
    /// not take in time ends the connection, as half a frame was sent.
    ///
    /// # Errors
    /// If the rank does not take it in time, or its connection broke.
    pub(super) fn report(
        &self,
        rank: usize,
        of: impl FnOnce(&mut SentForms) -> ProcessReport,
        elements: &[Cow<[u8]>],
    ) -> io::Result<()> {
        let CallConnection { connection, sent, .. } = &self.others[&rank];
        let mut forms = sent.lock().unwrap_or_else(PoisonError::into_inner);
        let head = encoded(&of(&mut forms));
        let bytes = send_frame(&**connection, &head, elements).inspect_err(|why| {
            if gave_up(why) {
                connection.close(Shutdown::Write);
            }
        })?;
        self.sent.fetch_add(bytes, Relaxed);
        Ok(())
    }
    /// Tells the ranks outside of a group that this rank waits for one of its members, and in which call, or
    /// that it goes on.
    pub(crate) fn tell_wait(&self, members: &[usize], wait: Option<(usize, String)>) {
        for rank in self.others.keys().filter(|rank| !members.contains(rank)) {
            // a failed process is reported by its stand-in
            drop(self.report(*rank, |_| ProcessReport::Waits(wait.clone()), &[]));
        }
    }
    /// Runs `hear` on the reports of a rank; for the rank's stand-in.
    pub(super) fn with_reports<T>(&self, rank: usize, hear: impl FnOnce(&mut Heard) -> T) -> T {
        hear(&mut self.others[&rank].heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Sends the next call in the order to the ranks that `to` selects; only rank 0's process sends.
    pub(super) fn say(&self, message: &CallMessage, to: impl Fn(usize) -> bool) {
        let others = self.orders.iter().filter(|(rank, _)| self.rank == 0 && to(**rank));
        for (_, connection) in others {
            // a failed process is reported by its stand-in
            let sent = send_frame(&**connection, &encoded(message), &[]);
            self.sent.fetch_add(sent.unwrap_or(0), Relaxed);
        }
    }
    /// Receives the next call in rank 0's order; `None` if there are no more.
    pub(super) fn message(&self) -> CallMessage {
        receive_head(&mut Incoming(self.orders.get(&0)?.clone())).ok()?
    }
    /// Bytes that this process has sent to others for calls, with all that surrounds elements.
    pub fn sent_bytes(&self) -> usize {
        self.sent.load(Relaxed)
    }
    /// The shares of all-reduces between these processes.
    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }
    /// Returns the last calls of this process' rank, if it is in a run that has not failed.
    pub fn last_calls(&self) -> Option<FlightRecorder> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.as_ref().map(|record| FlightRecorder::running(self.rank, &record.last_calls(None)))
    }
    /// Begins a run of this rank: a process that receives nothing for `limit` is late.
    pub(crate) fn begin(&self, record: &Arc<RankRecord>, limit: Duration) {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.clone());
        self.connections().for_each(|connection| drop(connection.limit([Some(limit), None])));
    }
    fn connections(&self) -> impl Iterator<Item = &Arc<dyn Connection>> {
        self.others.values().map(|other| &other.connection).chain(self.orders.values())
    }
    /// Reports to all processes that this rank has ended, and the failure that it ended with, if one.
    pub(crate) fn end(&self, failure: Option<&FailedEnd>) {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner) = None;
        for (rank, CallConnection { connection, .. }) in &self.others {
            if failure.is_some() {
                // the receiver may be the process that stopped
                drop(connection.limit([Some(Duration::from_secs(1)), None]));
            }
            // a failed process is reported by its stand-in
            drop(self.report(*rank, |_| ProcessReport::Ended(failure.cloned()), &[]));
        }
    }
    /// Announces that this process' rank waits for others, until the value is dropped.
    pub(super) fn waits(&self) -> RankWait<'_> {
        self.carrier.waits(true);
        RankWait(&*self.carrier)
    }
    /// Waits, for a moment, until the process of this rank has exited: it tells of a failure, and a launcher
    /// ends all processes when the first has exited.
    pub(crate) fn let_tell(&self, rank: usize) {
        const MOMENT: Duration = Duration::from_secs(2);
        if self.left.load(Relaxed) {
            return sleep(MOMENT / 8); // nothing is heard of it
        }
        let until = Instant::now() + MOMENT;
        let connection = &self.others[&rank].connection;
        let _ = connection.limit([None, Some(MOMENT)]);
        let mut more = [0; 1 << 10];
        while Instant::now() < until && connection.receive(&mut more).is_ok_and(|read| read > 0) {}
    }
    /// Leaves: closes all connections.
    pub(crate) fn leave(&self) {
        self.left.store(true, Relaxed);
        self.carrier.leave();
        self.connections().for_each(|connection| connection.close(Shutdown::Both));
        self.shares.close();
    }
}

/// Wait of this process' rank for others.
pub(super) struct RankWait<'a>(&'a dyn Carrier);

impl Drop for RankWait<'_> {
    fn drop(&mut self) {
        self.0.waits(false);
    }
}
