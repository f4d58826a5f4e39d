//! What processes tell each other. A frame is the length of its head, the head as JSON, and the elements that its calls carry.
use crate::Call;
use crate::engine::Post;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest head of calls that is read: what is longer is no frame.
pub(super) const LONGEST: usize = 1 << 26;

/// What a rank tells of.
#[derive(Serialize, Deserialize)]
pub(super) enum Told {
    /// Calls in a group of these members, with the bytes that follow of what each gives: where they begin, how many.
    Calls(Way, Arc<[usize]>, Vec<(Call, [usize; 2])>),
    /// That it waits for what it started.
    Finish(Arc<[usize]>, Post),
    /// That it drops what it started.
    Withdraw(Arc<[usize]>, Post),
    /// That it has ended, with which failure of which rank, if with one.
    Ended(Option<(usize, String)>),
}

/// Which function of an engine calls are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Way {
    Now,
    Values,
    Start,
    Post,
}

/// Writes a head before these elements.
pub(super) fn send(mut to: impl Write, head: &impl Serialize, elements: &[Cow<[u8]>]) -> io::Result<()> {
    const SMALL: usize = 1 << 16; // goes in one piece
    let mut frame = vec![0; 8];
    serde_json::to_writer(&mut frame, head)?;
    let len = frame.len() as u64 - 8;
    frame[..8].copy_from_slice(&len.to_le_bytes());
    for elements in elements {
        if frame.len() + elements.len() < SMALL {
            frame.extend(&**elements);
        } else {
            to.write_all(&frame)?;
            frame.clear();
            to.write_all(elements)?;
        }
    }
    to.write_all(&frame)
}

/// Reads the next head, of at most so many bytes. Memory is taken as they come.
///
/// # Errors
/// Those of the connection, and if what comes is no such head.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let len = usize::try_from(u64::from_le_bytes(len)).ok().filter(|len| *len <= most);
    let head = come(from, len.ok_or_else(no_frame)?)?;
    serde_json::from_slice(&head).map_err(|_| no_frame())
}

/// Reads so many bytes. Memory is taken as they come.
///
/// # Errors
/// Those of the connection, and if it ends before.
pub(super) fn come(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    const SMALL: usize = 1 << 16;
    let mut bytes = Vec::with_capacity(len.min(SMALL));
    let came = from.take(len as u64).read_to_end(&mut bytes)?;
    if came < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// A connection on which everything must have gone and come by a moment, however slowly it does.
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    pub(super) fn new(stream: &'a TcpStream, until: Instant) -> Self {
        Self { stream, until }
    }
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(to)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is read where a frame should be.
pub(super) fn no_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is no call")
}
