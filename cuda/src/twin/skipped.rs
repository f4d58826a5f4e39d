//! Tests that a machine cannot run say so where it is seen.
use std::fs::File;
use std::io::{Write, stderr};

/// Says that this test, or part of it, is skipped, and why: on standard error itself, as the test runner keeps what tests print,
/// and in the file `EQUIPART_SKIPPED`, from which `cargo xtask ci` lists it at its end.
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
