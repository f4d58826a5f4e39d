//! Limits of the machine: threads and memory that the system refuses. A program ends then with one sentence
//! and exit code 2 ([`end_by`], [`EndingAllocator`]); elsewhere the work unwinds with a [`PlaceError`].
//!
//! A thread that waits for one that did not start would wait forever, so the program ends at once.
use crate::count::caught;
use crate::quoted::counted;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Failure of a place: the message of its driver, or of the system. The code that computes there unwinds with
/// this value, up to [`PlaceError::caught`] or to the end of the rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlaceError(pub String);

impl PlaceError {
    /// Unwinds, without a message on standard error.
    pub fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }
    /// Runs `work` and returns its result, unless the place fails.
    ///
    /// # Errors
    /// The failure.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Self> {
        caught(work)
    }
}

static END: OnceLock<fn(&str)> = OnceLock::new();
static REFUSED: OnceLock<String> = OnceLock::new();

/// Makes `end` end this process, with a sentence, once the system refuses a thread.
pub fn end_by(end: fn(&str)) {
    END.get_or_init(|| end);
}

/// Returns the first refusal of the system in this process, in one sentence.
pub fn refusal() -> Option<&'static str> {
    REFUSED.get().map(String::as_str)
}

/// Takes note of a refusal.
pub(crate) fn note(why: &dyn Display) {
    REFUSED.get_or_init(|| why.to_string());
}

/// Ends the program because a thread did not start; returns the sentence where [`end_by`] was not called.
pub fn no_thread(why: &io::Error) -> String {
    let running = counted(std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count), "thread");
    let said = format!(
        "cannot start a thread: {why}; this process has {running} and needs 1 more; raise the limit of \
         processes or memory (ulimit -u, ulimit -v, or the container's)"
    );
    note(&said);
    END.get().inspect(|end| end(&said));
    said
}

/// Starts a thread as [`std::thread::spawn`] does.
///
/// # Panics
/// With [`PlaceError`], if the system refuses and the program does not end.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).unwrap_or_else(|why| PlaceError(no_thread(&why)).unwind())
}

/// Starts a thread of a scope as [`Scope::spawn`] does.
///
/// # Panics
/// As [`spawn`].
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().spawn_scoped(scope, work).unwrap_or_else(|why| PlaceError(no_thread(&why)).unwind())
}

/// The system's allocator, for a program: memory that it refuses ends the process with a sentence and exit
/// code 2. By default Rust aborts the process.
pub struct EndingAllocator;

impl EndingAllocator {
    /// Returns memory that was allocated, or ends the process. Allocates nothing.
    fn got(at: *mut u8, bytes: usize) -> *mut u8 {
        if at.is_null() {
            let mut said = [0u8; 128];
            let room = said.len();
            let mut left = &mut said[..];
            let _ = writeln!(left, "error: the system has no {bytes} more bytes of memory for this process");
            let len = room - left.len();
            end(&[&said[..len]]);
        }
        at
    }
}

/// Writes these bytes to standard error and ends the process with exit code 2. Signal handlers may call it.
pub(crate) fn end(said: &[&[u8]]) -> ! {
    #[cfg(unix)]
    for part in said {
        // SAFETY: the bytes are there; a failed write has no reader.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    #[cfg(unix)]
    // SAFETY: ends the process without running any code of it.
    unsafe {
        libc::_exit(2)
    }
    #[cfg(not(unix))]
    std::process::exit(2)
}

// SAFETY: the memory is that of the system's allocator.
unsafe impl GlobalAlloc for EndingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, here and below.
        Self::got(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Self::got(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        Self::got(unsafe { System.realloc(at, layout, size) }, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[global_allocator]
    static MEMORY: EndingAllocator = EndingAllocator;

    /// Runs in processes of its own. Kills: an abort by the allocator's failure, a refused thread that panics
    /// as a bug does, or is not told of.
    #[test]
    fn refused_memory_and_threads_end_a_process_with_one_sentence() {
        const CASE: &str = "EQUIPART_TEST_LIMIT";
        match std::env::var(CASE).as_deref() {
            Ok("memory") => panic!("{} bytes", Vec::<u8>::with_capacity(1 << 46).capacity()),
            Ok("thread") => {
                let refused = PlaceError::caught(|| drop(spawn(|| ()))).unwrap_err();
                assert_eq!(refusal(), Some(&*refused.0));
                end_by(|why| end(&[b"error: ", why.as_bytes(), b"\n"]));
                std::thread::scope(|scope| drop(scoped(scope, || ())));
            }
            _ => {}
        }
        let name = "limits::tests::refused_memory_and_threads_end_a_process_with_one_sentence";
        let too_large = "error: the system has no 70368744177664 more bytes of memory for this process\n";
        let no_thread = "error: cannot start a thread: ";
        for (case, says) in [("memory", too_large), ("thread", no_thread)] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(CASE, case);
            if case == "thread" {
                command.env("RUST_MIN_STACK", (1u64 << 47).to_string());
            }
            let ended = command.output().unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            assert_eq!((ended.status.code(), said.lines().count()), (Some(2), 1), "{said}");
            assert!(said.starts_with(says), "{said}");
        }
    }
}
