//! Frames that processes send each other. A frame is the length of its head, the head, and the elements that
//! its calls carry. Heads are JSON while processes meet, as programs of several versions may do, and
//! postcard's bytes afterwards: a step makes many calls, and few bytes should travel beside their elements.
use crate::Call;
use crate::engine::Post;
use crate::flight::LastCalls;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Longest head of calls that is read, in bytes; a longer one is an error.
pub(super) const LONGEST: usize = 1 << 26;

/// Report of a rank.
#[derive(Serialize, Deserialize)]
pub(super) enum ProcessReport {
    /// Calls, and the number of the first on its rank. The elements that the receiver takes of each
    /// follow.
    Calls(CallsForm, usize),
    /// The rank waits for a post.
    Finish(Arc<[usize]>, Post),
    /// The rank drops a post.
    Withdraw(Arc<[usize]>, Post),
    /// The rank waits for another one, in a call of which this process was not told; `None`: it goes on.
    Waits(Option<(usize, String)>),
    /// The rank has ended; if with a failure, that.
    Ended(Option<FailedEnd>),
}

/// A failure that a rank has ended with: the failed rank and the reason; and this rank's last calls.
pub(crate) type FailedEnd = ((usize, String), LastCalls);

/// Name of a call that all its ranks have entered, the same in all processes: a rank of the world, and the
/// number of its call.
pub(crate) type Name = [usize; 2];
/// Message of rank 0's process: the name of a call, and the bytes drawn for its group if the group is new;
/// `None` if there are no more.
pub(super) type CallMessage = Option<(Name, Vec<u8>)>;

/// Calls in a group of these members, without their numbers.
#[derive(Serialize, Deserialize)]
pub(super) struct GroupCalls {
    pub(super) way: EngineFunction,
    pub(super) members: Arc<[usize]>,
    pub(super) calls: Vec<Call>,
}

/// [`GroupCalls`] on a connection: their bytes, or their place among those that were sent before
/// (`forms.rs`).
#[derive(Serialize, Deserialize)]
pub(super) enum CallsForm {
    New(Vec<u8>),
    Known(usize),
}

/// The engine function that calls are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EngineFunction {
    Now,
    Values,
    Start,
    Post,
}

/// Bytes of a frame: its head's length, the head, and the elements.
pub(super) fn frame_bytes(head: &[u8], elements: &[Cow<[u8]>]) -> usize {
    size_of::<u64>() + head.len() + elements.iter().map(|elements| elements.len()).sum::<usize>()
}

/// Writes a head and the elements after it. Returns the number of bytes.
pub(super) fn send_frame(mut to: impl Write, head: &[u8], elements: &[Cow<[u8]>]) -> io::Result<usize> {
    const SMALL: usize = 1 << 16; // sent in one piece
    let mut frame = (head.len() as u64).to_le_bytes().to_vec();
    frame.extend(head);
    for elements in elements {
        if frame.len() + elements.len() < SMALL {
            frame.extend(&**elements);
            continue;
        }
        if !frame.is_empty() {
            to.write_all(&frame)?;
            frame.clear();
        }
        to.write_all(elements)?;
    }
    if !frame.is_empty() {
        to.write_all(&frame)?;
    }
    Ok(frame_bytes(head, elements))
}

/// Reads the next head, of at most `most` bytes. Memory is allocated as bytes arrive.
fn read_head(from: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let len = usize::try_from(u64::from_le_bytes(len)).ok().filter(|len| *len <= most);
    read_bytes(from, len.ok_or_else(no_frame)?)
}

/// Writes a message of a meeting.
pub(super) fn send(to: impl Write, message: &impl Serialize) -> io::Result<usize> {
    send_frame(to, &serde_json::to_vec(message)?, &[])
}

/// Reads the next message of a meeting, of at most `most` bytes.
///
/// # Errors
/// Errors of the connection, and an error if the bytes are no such message.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    serde_json::from_slice(&read_head(from, most)?).map_err(|_| no_frame())
}

/// Encodes the head of a frame of a run.
pub(super) fn encoded(head: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(head).expect("heads hold numbers, lists and names")
}

/// Decodes what [`encoded`] returned.
pub(super) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((head, [])) => Ok(head),
        _ => Err(no_frame()),
    }
}

/// Reads the next head of a run.
///
/// # Errors
/// As for [`receive`].
pub(super) fn receive_head<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    decoded(&read_head(from, LONGEST)?)
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

/// Error for bytes that are not a valid frame.
pub(super) fn no_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the bytes received are not a valid frame")
}

/// Returns why nothing more arrives from a rank.
pub(super) fn exited(why: io::Error) -> String {
    const EXITED: &str = "its process exited without a report, or its connection broke";
    match why.kind() {
        io::ErrorKind::InvalidData => format!("its process sent an invalid report: {why}"),
        // one of these, by chance
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            EXITED.into()
        }
        _ => format!("{EXITED} ({why})"),
    }
}
