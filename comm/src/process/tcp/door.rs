//! Listener of a process while ranks meet. Each connection is served by a thread of its own, which ends in
//! time: a silent or slow stranger holds up no other process.
use super::super::frame::receive;
use super::super::secret::{ConnectionEnd, STRANGER, Secret};
use super::greeting::{Greeting, MeetingEvent};
use super::timed::TimedConnection;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tensor::limits;

/// Longest time for a connected process to prove that it knows the secret and to send its greeting.
pub(super) const PROMPT: Duration = Duration::from_secs(10);
/// Longest time for ranks to be joined once all have arrived: no longer than the limit.
pub(super) fn settling(limit: Duration) -> Duration {
    limit.min(PROMPT)
}

/// Interval at which the listener is polled.
const EVERY: Duration = Duration::from_millis(5);
/// Largest number of connections that may be greeting at once; others are closed.
const MOST: usize = 256;
/// Largest size of a greeting, in bytes.
const LONGEST: usize = 1 << 20;

/// A listener, closed when it is dropped.
pub(super) struct Door {
    open: Arc<AtomicBool>,
    rejected: Arc<AtomicUsize>,
}

impl Door {
    /// Accepts processes that know the secret. Each arrives as an event, with its greeting.
    pub(super) fn open(
        listener: TcpListener,
        secret: &Secret,
        to: &Sender<MeetingEvent>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let door = Self { open: Arc::new(AtomicBool::new(true)), rejected: Arc::default() };
        let (open, rejected, secret) = (door.open.clone(), door.rejected.clone(), secret.clone());
        let (at_once, to) = (Arc::new(AtomicUsize::new(0)), to.clone());
        limits::spawn(move || {
            while open.load(SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    sleep(EVERY);
                    continue;
                };
                if at_once.fetch_add(1, SeqCst) >= MOST {
                    at_once.fetch_sub(1, SeqCst);
                    continue;
                }
                let (secret, to) = (secret.clone(), to.clone());
                let (at_once, rejected) = (at_once.clone(), rejected.clone());
                limits::spawn(move || {
                    match greeted(&stream, &secret) {
                        Ok(greeting) => drop(to.send(MeetingEvent::Came(stream, greeting))),
                        Err(_) => drop(rejected.fetch_add(1, SeqCst)),
                    }
                    at_once.fetch_sub(1, SeqCst);
                });
            }
        });
        Ok(door)
    }
    /// Number of connections that did not prove that they know the secret or did not greet, in words; empty
    /// if none.
    pub(super) fn rejected(&self) -> String {
        match self.rejected.load(SeqCst) {
            0 => String::new(),
            n => format!("; connections refused for no or another secret, or no greeting: {n}"),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.open.store(false, SeqCst);
    }
}

fn greeted(stream: &TcpStream, secret: &Secret) -> io::Result<Greeting> {
    stream.set_nonblocking(false)?;
    let timed = &mut TimedConnection::new(stream, Instant::now() + PROMPT);
    secret.displayed(timed, ConnectionEnd::Listens)?;
    receive(timed, LONGEST)
}

/// Error kind of an address that needs a secret.
pub(super) const FAR: io::ErrorKind = io::ErrorKind::InvalidInput;

/// Resolves the addresses of a host and port.
///
/// # Errors
/// If there is none; [`FAR`], with a one-sentence message, if other machines can reach one of them and there
/// is no secret.
pub(super) fn resolved(host: &str, port: u16, secret: &Secret) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    match addresses.iter().find(|at| secret.is_none() && !at.ip().to_canonical().is_loopback()) {
        Some(at) => Err(io::Error::new(
            FAR,
            format!(
                "MASTER_ADDR is {host} ({}), which other machines can reach, and there is no secret; set \
                 EQUIPART_SECRET or --secret for all ranks, or MASTER_ADDR to 127.0.0.1",
                at.ip()
            ),
        )),
        None => Ok(addresses),
    }
}

/// Connects to a process that listens at `at` and knows the secret; tries until `until`.
///
/// # Errors
/// The last error; at once if the other end does not know the secret or is another program, or if `at` fails
/// with [`FAR`].
pub(crate) fn reached(
    at: impl Fn() -> io::Result<Vec<SocketAddr>>,
    secret: &Secret,
    until: Instant,
) -> io::Result<TcpStream> {
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(EVERY);
        let reach = |at: &SocketAddr| {
            let stream = TcpStream::connect_timeout(at, left)?;
            stream.set_nodelay(true)?;
            let timed = &mut TimedConnection::new(&stream, Instant::now() + PROMPT);
            secret.displayed(timed, ConnectionEnd::Connects).map_err(|why| match why.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    io::Error::new(why.kind(), "a program listens there and does not answer")
                }
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    io::Error::new(why.kind(), "a program listens there and closes the connection")
                }
                _ => why,
            })?;
            Ok(stream)
        };
        let mut why = io::Error::new(io::ErrorKind::NotFound, "no such host");
        for tried in at().map_or_else(|error| vec![Err(error)], |all| all.iter().map(reach).collect()) {
            match tried {
                Ok(stream) => return Ok(stream),
                Err(error) if [STRANGER, io::ErrorKind::PermissionDenied, FAR].contains(&error.kind()) => {
                    return Err(error);
                }
                Err(error) => why = error,
            }
        }
        if Instant::now() >= until {
            return Err(why);
        }
        sleep(EVERY);
    }
}
