//! Threads, locks and atomics on which ranks meet: the standard library's or, under `--cfg loom`, those of a
//! model checker, which runs a program in the orders that the memory model allows (`threads/tests/models`).
//!
//! Time stands still in a model: no rank is late, and a sleeping thread sleeps until it is woken. loom treats
//! sequentially consistent accesses as weaker than they are. So if two ranks each write and then read what
//! the other wrote, there is a fence between the write and the read.
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

/// Locks a mutex under which nothing panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}
