//! What ranks meet on: the standard library's threads, locks and atomics, or, under `--cfg loom`, those of a model
//! checker, which runs a program under the orders that the memory model allows (`threads/models.rs`).
//!
//! Time stands still in a model: nobody is late, and who sleeps is woken or sleeps for ever. loom takes accesses that
//! are sequentially consistent for weaker ones than they are, so where two ranks each write and then look at what the
//! other wrote, there is a fence between.
#[cfg(loom)]
mod models;

#[cfg(loom)]
pub(crate) use self::models::{Instant, OnceLock, Thread, fence, park_timeout, thread};
#[cfg(all(test, loom))]
pub(crate) use self::models::{Tracked, copy};
#[cfg(loom)]
pub(crate) use loom::{
    sync::{Mutex, MutexGuard, atomic},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{self, fence},
    },
    thread::{self, Thread, park_timeout, yield_now},
    time::Instant,
};

/// A lock under which nothing panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}
