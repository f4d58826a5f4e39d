//! Reports of tests that a machine cannot run.
use std::fs::File;
use std::io::{Write, stderr};

/// Reports that this test, or part of it, is skipped, and why. The report goes to standard error directly, as
/// the test runner captures what tests print, and to the file `EQUIPART_SKIPPED`, which `cargo xtask ci`
/// lists at its end.
///
/// # Panics
/// If the file cannot be written.
pub(crate) fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("EQUIPART_SKIPPED") {
        let file = File::options().create(true).append(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("EQUIPART_SKIPPED can be written");
    }
}
