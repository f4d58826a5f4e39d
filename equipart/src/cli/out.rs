//! Standard output and standard error, whoever reads them or stops reading: a closed pipe ends no training.
use parallel::{Error, Result};
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The first failure of standard output; what comes after it is not written.
static FAILED: OnceLock<(ErrorKind, String)> = OnceLock::new();

/// Whether this process is a rank that another one speaks for.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// From now on nothing is shown but failures.
pub(crate) fn hush() {
    HUSHED.store(true, Relaxed);
}

/// Whether nothing is shown but failures.
pub(crate) fn hushed() -> bool {
    HUSHED.load(Relaxed)
}

/// Writes a line of results.
pub(crate) fn line(text: &str) {
    if FAILED.get().is_some() || hushed() {
        return;
    }
    let mut out = stdout().lock();
    if let Err(why) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        let _ = FAILED.set((why.kind(), why.to_string()));
    }
}

/// Writes a line for people beside the results. If nobody can read it, nothing is lost.
pub(crate) fn note(text: &str) {
    if !hushed() {
        failure(text);
    }
}

/// Writes a line of what went wrong.
pub(crate) fn failure(text: &str) {
    let _ = writeln!(stderr().lock(), "{text}");
}

/// Tells if results may be in colour (on a terminal whose user does not object, no-color.org), and gives its columns, or those that
/// `COLUMNS` says, or a usual number.
pub(crate) fn terminal() -> (bool, usize) {
    let said = |name| std::env::var(name).unwrap_or_default();
    let colour = stdout().is_terminal() && said("NO_COLOR").is_empty() && said("TERM") != "dumb";
    let columns = comfy_table::Table::new().width().map(usize::from);
    let columns = columns.or_else(|| said("COLUMNS").parse().ok()).filter(|columns| *columns > 0);
    (colour, columns.unwrap_or(100))
}

/// Whether all results were written. A reader that has had enough is no failure.
pub(crate) fn finish() -> Result<()> {
    match FAILED.get() {
        Some((kind, why)) if *kind != ErrorKind::BrokenPipe => {
            Err(Error::new(format!("the results could not be written to standard output: {why}")))
        }
        _ => Ok(()),
    }
}
