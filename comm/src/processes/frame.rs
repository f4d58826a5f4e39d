//! Frames that processes send each other. A frame is the length of its head, the head as JSON, and the
//! elements that its calls carry.
use crate::Call;
use crate::engine::Post;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest head of calls that is read, in bytes; a longer one is an error.
pub(super) const LONGEST: usize = 1 << 26;

/// Report of a rank.
#[derive(Serialize, Deserialize)]
pub(super) enum ProcessReport {
    /// Calls in a group of these members, each with a range of its elements: where they begin and how many
    /// bytes follow.
    Calls(EngineFunction, Arc<[usize]>, Vec<(Call, [usize; 2])>),
    /// The rank waits for a post.
    Finish(Arc<[usize]>, Post),
    /// The rank drops a post.
    Withdraw(Arc<[usize]>, Post),
    /// The rank has ended; if with a failure, the failed rank and the reason.
    Ended(Option<(usize, String)>),
}

/// The engine function that calls are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EngineFunction {
    Now,
    Values,
    Start,
    Post,
}

/// Writes a head and the elements after it. Returns the number of bytes.
pub(super) fn send(mut to: impl Write, head: &impl Serialize, elements: &[Cow<[u8]>]) -> io::Result<usize> {
    const SMALL: usize = 1 << 16; // sent in one piece
    let mut frame = vec![0; 8];
    serde_json::to_writer(&mut frame, head)?;
    let len = frame.len() as u64 - 8;
    frame[..8].copy_from_slice(&len.to_le_bytes());
    let all = frame.len() + elements.iter().map(|elements| elements.len()).sum::<usize>();
    for elements in elements {
        if frame.len() + elements.len() < SMALL {
            frame.extend(&**elements);
        } else {
            to.write_all(&frame)?;
            frame.clear();
            to.write_all(elements)?;
        }
    }
    to.write_all(&frame).map(|()| all)
}

/// Reads the next head, of at most `most` bytes. Memory is allocated as bytes arrive.
///
/// # Errors
/// Errors of the connection, and an error if the bytes are no such head.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let len = usize::try_from(u64::from_le_bytes(len)).ok().filter(|len| *len <= most);
    let head = read_bytes(from, len.ok_or_else(no_frame)?)?;
    serde_json::from_slice(&head).map_err(|_| no_frame())
}

/// Reads `len` bytes. Memory is allocated as bytes arrive.
///
/// # Errors
/// Errors of the connection, and an error if it ends before.
pub(super) fn read_bytes(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    const SMALL: usize = 1 << 16;
    let mut bytes = Vec::with_capacity(len.min(SMALL));
    let arrived = from.take(len as u64).read_to_end(&mut bytes)?;
    if arrived < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// A connection on which all reads and writes must end by a moment, however slow they are.
pub(super) struct TimedConnection<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> TimedConnection<'a> {
    pub(super) fn new(stream: &'a TcpStream, until: Instant) -> Self {
        Self { stream, until }
    }
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for TimedConnection<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(to)
    }
}

impl Write for TimedConnection<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Error for bytes that are not a valid frame.
pub(super) fn no_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the bytes received are not a valid frame")
}
