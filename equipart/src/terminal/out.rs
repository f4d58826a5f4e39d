//! Standard output and standard error. A closed pipe does not end a training run.
use parallel::{Error, Result};
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tensor::quoted::escaped_lines;

/// The first failure of standard output; nothing is written after it.
static FAILED: OnceLock<(ErrorKind, String)> = OnceLock::new();

/// True if this process is a rank that does not print: rank 0 prints for it.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Silences this process: from now on it prints failures only.
pub(crate) fn silence() {
    HUSHED.store(true, Relaxed);
}

/// Returns true if this process prints failures only.
pub(crate) fn is_silent() -> bool {
    HUSHED.load(Relaxed)
}

/// Writes a line of results for people; what a terminal would obey in the names of files is escaped.
pub(crate) fn line(text: &str) {
    plain(&escaped_lines(text));
}

/// Writes a line of results as it is: JSON, a picture in colour, or a generated text.
pub(crate) fn plain(text: &str) {
    if !is_silent() {
        raw(format!("{text}\n").as_bytes());
    }
}

/// Writes bytes of results.
pub(crate) fn raw(bytes: &[u8]) {
    if FAILED.get().is_some() {
        return;
    }
    let mut out = stdout().lock();
    if let Err(why) = out.write_all(bytes).and_then(|()| out.flush()) {
        let _ = FAILED.set((why.kind(), why.to_string()));
    }
}

/// Writes a line for people to standard error. Write errors are ignored.
pub(crate) fn note(text: &str) {
    if !is_silent() {
        failure(text);
    }
}

/// Writes a line about a failure to standard error.
pub(crate) fn failure(text: &str) {
    let _ = writeln!(stderr().lock(), "{}", escaped_lines(text));
}

/// Returns whether results may be in colour (the output is a terminal and the user does not object,
/// no-color.org) and the number of columns: the terminal's, else `COLUMNS`, else 100.
pub(crate) fn terminal() -> (bool, usize) {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let colour = stdout().is_terminal() && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb";
    let columns = comfy_table::Table::new().width().map(usize::from);
    let columns = columns.or_else(|| variable("COLUMNS").parse().ok()).filter(|columns| *columns > 0);
    (colour, columns.unwrap_or(100))
}

/// Returns `Ok` if all results were written. A reader that closes the pipe early is not a failure.
pub(crate) fn finish() -> Result<()> {
    match FAILED.get() {
        Some((kind, why)) if *kind != ErrorKind::BrokenPipe => {
            Err(Error::new(format!("the results could not be written to standard output: {why}")))
        }
        _ => Ok(()),
    }
}
