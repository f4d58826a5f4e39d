//! Ranks as threads, seen from outside: what they compute and count, what they are told when one of them
//! fails, how long they take.
pub(crate) mod acts;
mod blocks;
mod failures;
mod promises;
mod requests;
mod sets;
mod started;
mod steady_state;
pub(crate) mod stress;
mod timing;

use super::watch::PATIENT;
use std::time::{Duration, Instant};

/// Waits until this is so.
///
/// # Panics
/// If it is not so in time: what should have made it so is broken.
#[track_caller]
pub(crate) fn until(done: impl Fn() -> bool) {
    let from = Instant::now();
    while !done() {
        assert!(from.elapsed() < PATIENT, "a test waited {PATIENT:?} for what did not come");
        std::thread::sleep(Duration::from_micros(100)); // and leave the cores to others
    }
}
