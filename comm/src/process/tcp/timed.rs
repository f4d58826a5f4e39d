//! Connections whose reads and writes end by a moment, while ranks meet.
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A connection on which all reads and writes must end by a moment, however slow they are.
pub(crate) struct TimedConnection<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> TimedConnection<'a> {
    pub(crate) fn new(stream: &'a TcpStream, until: Instant) -> Self {
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
