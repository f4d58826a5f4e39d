//! MPI as the carrier of processes that MPI started. A connection is the messages between two ranks that have
//! one tag, in a communicator of our own; a message carries the bytes of one send.
//!
//! One thread looks for messages. It finds the tag of each, and whoever waits for it receives it into its own
//! memory: MPI's matched probes pass a message from one thread to another. The thread looks all the time
//! while this process' rank waits, and rests in between, as the rank has work to do then.
use super::connection::{Carrier, CarrierInfo, Connection, Connections, Incoming, Met};
use super::frame::{LONGEST, receive, send};
use super::launch::Launch;
use crate::process::run_inputs::{MeetingError, RunInputs, drawn};
use mpi::environment::{Universe, library_version};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;
use mpi::{Threading, ffi};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::mem::{ManuallyDrop, MaybeUninit, forget};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread, current, park_timeout, sleep, yield_now};
use std::time::{Duration, Instant};
use tensor::limits;
use tensor::quoted::sentence;

/// MPI among the carriers: it carries what the ranks of its own launchers send.
pub(super) const INFO: CarrierInfo =
    CarrierInfo { carries: |variable| variable != "RANK", needs_address: false, meets, finalize };

/// Kinds of connections, which are tags: calls, their order, shares.
const KINDS: usize = 3;
/// Looks for a message before the first rest, if no rank waits; and the length of a rest.
const LOOKS: usize = 1000;
const REST: Duration = Duration::from_micros(200);
/// Longest message, in bytes; a longer send is several.
const LONGEST_MESSAGE: usize = 1 << 30;

/// MPI in this process.
struct Mpi {
    world: ManuallyDrop<SimpleCommunicator>, // MPI frees it when it ends
    queues: Vec<[Queue; KINDS]>,             // by rank
    waiting: AtomicUsize,                    // waits of this process' rank
    looks: Thread,                           // the thread that looks for messages
    ended: AtomicBool,                       // no call of MPI is made any more
    left: AtomicBool,                        // others may not come to an orderly end
}

// SAFETY: the level of threading is MPI_THREAD_MULTIPLE: any thread may use the communicator.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

/// Messages of one connection that were found, each with its length in bytes.
#[derive(Default)]
struct Queue {
    found: Mutex<VecDeque<(ffi::MPI_Message, usize)>>,
    changed: Condvar,
}

/// MPI in this process, and the thread that looks for messages.
type OpenMpi = (Arc<Mpi>, JoinHandle<()>);

/// Ended by [`finalize`].
static OPEN: Mutex<Option<OpenMpi>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends MPI in this process, if it was started.
fn finalize() {
    let Some((mpi, looks)) = lock(&OPEN).take() else { return };
    mpi.ended.store(true, SeqCst);
    looks.thread().unpark();
    let _ = looks.join();
}

/// Starts MPI, and waits until all its processes have the same arguments and files.
fn meets(launch: &Launch, asked: &RunInputs, limit: Duration) -> Result<Met, MeetingError> {
    const LATER: Duration = Duration::from_secs(1); // so that rank 0 tells what all ranks notice
    let (rank, (to, started)) = (launch.rank, channel());
    let looking = limits::spawn({
        let launch = launch.clone();
        move || runs(&launch, &to)
    });
    let patience = if rank == 0 { limit } else { limit + LATER };
    let begun = started.recv_timeout(patience).map_err(|_| {
        format!("rank {rank} started MPI and waited {limit:?}, but other ranks have not started it")
    });
    let (mpi, here) = begun??;
    *lock(&OPEN) = Some((mpi.clone(), looking));
    let of_kind = |kind| {
        let others = (0..launch.ranks).filter(|other| *other != rank);
        let with = |rank| {
            let (limits, rest) = (Mutex::new([Some(limit); 2]), Mutex::default());
            let mpi = mpi.clone();
            let with = MpiConnection { mpi, rank, kind, limits, rest, closed: Default::default() };
            (rank, Arc::new(with) as Arc<dyn Connection>)
        };
        others.map(with).collect()
    };
    let connections: [Connections; KINDS] = std::array::from_fn(of_kind);
    let number = agree(rank, &connections[0], asked)?;
    mpi.waits(false);
    Ok(Met { carrier: Box::new(mpi), connections, here, number })
}

/// Starts MPI, passes it on with the number of ranks on this machine, and looks for messages until it ends.
/// MPI is started and ended by one thread, as it demands.
fn runs(launch: &Launch, to: &Sender<Result<(Arc<Mpi>, usize), String>>) {
    let Some((universe, level)) = mpi::initialize_with_threading(Threading::Multiple) else {
        return drop(to.send(Err("MPI has been started before in this process".to_owned())));
    };
    let open = opened(launch, &universe, level);
    let mpi = open.as_ref().ok().map(|(mpi, _)| mpi.clone());
    let _ = to.send(open); // if nobody waits any more, the process is about to end
    if let Some(mpi) = &mpi {
        mpi.look();
    }
    if mpi.is_none_or(|mpi| mpi.left.load(SeqCst)) {
        forget(universe); // others may not come to an end: the launcher ends all
    } // else it ends here, when all processes have come this far
}

/// Opens a communicator for ranks; returns it with the number of ranks on this machine.
fn opened(launch: &Launch, universe: &Universe, level: Threading) -> Result<(Arc<Mpi>, usize), String> {
    let Launch { rank, ranks, variables: [_, name], .. } = *launch;
    let library = library_version().unwrap_or_default();
    let library = sentence(library.split([',', '\n']).next().unwrap_or_default());
    let world = universe.world();
    let [own, there] = [world.rank() as usize, world.size() as usize];
    if level != Threading::Multiple {
        return Err(format!("{library} gives threads the level {level:?}; ranks need MPI_THREAD_MULTIPLE"));
    }
    if [own, there] != [rank, ranks] {
        return Err(format!(
            "{name} is {ranks}, and {library} sees rank {own} of {there}, not rank {rank} of {ranks}; start the processes by the \
             launcher of this library"
        ));
    }
    let here = launch.here.unwrap_or_else(|| world.split_shared(rank as i32).size() as usize);
    let world = ManuallyDrop::new(world.duplicate());
    // SAFETY: the communicator is our own.
    let handled = well(unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) });
    handled.map_err(|why| why.to_string())?;
    let mpi = Mpi {
        world,
        queues: (0..ranks).map(|_| Default::default()).collect(),
        waiting: AtomicUsize::new(1), // this process meets others
        looks: current(),
        ended: AtomicBool::new(false),
        left: AtomicBool::new(false),
    };
    Ok((Arc::new(mpi), here))
}

/// Compares what ranks have; returns a number that rank 0 has drawn.
fn agree(rank: usize, others: &Connections, asked: &RunInputs) -> Result<u64, MeetingError> {
    let lost =
        |other: usize| move |why: io::Error| format!("rank {rank} lost rank {other} while ranks met: {why}");
    if rank > 0 {
        let zero = || {
            send(&*others[&0], asked)?;
            receive(&mut Incoming(others[&0].clone()), LONGEST)
        };
        let number: Result<u64, String> = zero().map_err(lost(0))?;
        return number.map_err(|why| MeetingError::answered(&why));
    }
    let mut why = asked.refused.clone();
    for (rank, other) in others {
        let theirs = receive(&mut Incoming(other.clone()), LONGEST).map_err(lost(*rank))?;
        why = why.or_else(|| asked.differs(&theirs, *rank));
    }
    let number = why.map_or_else(drawn, Err);
    others.iter().try_for_each(|(rank, other)| send(&**other, &number).map(drop).map_err(lost(*rank)))?;
    Ok(number?)
}

/// Returns the error of an MPI call that returned `code`.
fn well(code: c_int) -> io::Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        Ok(())
    } else {
        Err(io::Error::other(format!("MPI returned error {code}")))
    }
}

impl Mpi {
    /// Looks for messages until MPI ends.
    fn look(&self) {
        let mut looks = 0;
        while !self.ended.load(SeqCst) {
            match self.found() {
                Ok(Some((from, kind, message, len))) => {
                    let queue = &self.queues[from][kind];
                    lock(&queue.found).push_back((message, len));
                    queue.changed.notify_all();
                    looks = 0;
                }
                Ok(None) if self.waiting.load(SeqCst) > 0 || looks < LOOKS => {
                    looks += 1;
                    yield_now();
                }
                _ => park_timeout(REST),
            }
        }
    }
    /// Returns a message that has arrived: its rank, kind, handle and length.
    fn found(&self) -> io::Result<Option<(usize, usize, ffi::MPI_Message, usize)>> {
        let [mut flag, mut len] = [0; 2];
        let (mut message, mut status) = (MaybeUninit::uninit(), MaybeUninit::<ffi::MPI_Status>::uninit());
        // SAFETY: the pointers are of variables above, which MPI sets if it sets the flag.
        unsafe {
            let any = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
            let world = self.world.as_raw();
            well(ffi::MPI_Improbe(
                any.0,
                any.1,
                world,
                &raw mut flag,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            ))?;
            if flag == 0 {
                return Ok(None);
            }
            let status = status.assume_init();
            well(ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut len))?;
            Ok(Some((
                status.MPI_SOURCE as usize,
                status.MPI_TAG as usize,
                message.assume_init(),
                len as usize,
            )))
        }
    }
}

impl Carrier for Arc<Mpi> {
    fn waits(&self, waits: bool) {
        if waits {
            self.waiting.fetch_add(1, SeqCst);
            self.looks.unpark();
        } else {
            self.waiting.fetch_sub(1, SeqCst);
        }
    }
    fn leave(&self) {
        self.left.store(true, SeqCst);
    }
}

/// The messages of one kind between this process and another.
struct MpiConnection {
    mpi: Arc<Mpi>,
    rank: usize,
    kind: usize,
    limits: Mutex<[Option<Duration>; 2]>,
    rest: Mutex<(Vec<u8>, usize)>, // a message that was received, and the number of its bytes that were read
    closed: [AtomicBool; 2],       // for sends, for receives
}

impl MpiConnection {
    /// Waits for the next message; `None` if this end is closed.
    fn next(&self) -> io::Result<Option<(ffi::MPI_Message, usize)>> {
        let until = lock(&self.limits)[1].map(|limit| Instant::now() + limit);
        let queue = &self.mpi.queues[self.rank][self.kind];
        let mut found = lock(&queue.found);
        loop {
            if let Some(message) = found.pop_front() {
                return Ok(Some(message));
            }
            if self.closed[1].load(SeqCst) {
                return Ok(None);
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            found = queue
                .changed
                .wait_timeout(found, left.min(Duration::from_mins(1)))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
    fn send_message(&self, bytes: &[u8]) -> io::Result<()> {
        let mut request = MaybeUninit::uninit();
        let mut flag = 0;
        let begun = Instant::now();
        let limit = lock(&self.limits)[0];
        // SAFETY: the bytes stay where they are until MPI is done with them; if the send is given up, this
        // process makes no call of MPI any more that could read them.
        unsafe {
            well(ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
                ffi::RSMPI_UINT8_T,
                self.rank as c_int,
                self.kind as c_int,
                self.mpi.world.as_raw(),
                request.as_mut_ptr(),
            ))?;
            loop {
                well(ffi::MPI_Test(request.as_mut_ptr(), &raw mut flag, ffi::RSMPI_STATUS_IGNORE))?;
                let waited = begun.elapsed();
                match limit {
                    _ if flag != 0 => return Ok(()),
                    Some(limit) if waited > limit => {
                        self.mpi.leave();
                        self.mpi.ended.store(true, SeqCst);
                        return Err(ErrorKind::TimedOut.into());
                    }
                    _ if waited > Duration::from_millis(10) => sleep(REST),
                    _ => yield_now(),
                }
            }
        }
    }
}

impl Connection for MpiConnection {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        for bytes in bytes.chunks(LONGEST_MESSAGE) {
            if self.closed[0].load(SeqCst) || self.mpi.ended.load(SeqCst) {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.send_message(bytes)?;
        }
        Ok(())
    }
    fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        let mut rest = lock(&self.rest);
        if rest.1 == rest.0.len() {
            let Some((mut message, len)) = self.next()? else { return Ok(0) };
            let into_rest = len > to.len();
            if into_rest {
                *rest = (vec![0; len], 0);
            }
            let into = if into_rest { rest.0.as_mut_ptr() } else { to.as_mut_ptr() };
            // SAFETY: there is room for the message, whose length MPI has told.
            well(unsafe {
                ffi::MPI_Mrecv(
                    into.cast(),
                    len as c_int,
                    ffi::RSMPI_UINT8_T,
                    &raw mut message,
                    ffi::RSMPI_STATUS_IGNORE,
                )
            })?;
            if !into_rest {
                return Ok(len);
            }
        }
        let (bytes, at) = &mut *rest;
        let n = to.len().min(bytes.len() - *at);
        to[..n].copy_from_slice(&bytes[*at..*at + n]);
        *at += n;
        Ok(n)
    }
    fn limit(&self, waits: [Option<Duration>; 2]) -> io::Result<()> {
        *lock(&self.limits) = waits;
        Ok(())
    }
    fn close(&self, how: Shutdown) {
        let closes = [how != Shutdown::Read, how != Shutdown::Write];
        self.closed.iter().zip(closes).for_each(|(closed, closes)| _ = closed.fetch_or(closes, SeqCst));
        self.mpi.queues[self.rank][self.kind].changed.notify_all();
    }
}
