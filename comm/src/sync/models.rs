//! Replacements for what loom lacks, or makes too strong; for the model checker only.
use super::{Mutex, lock};
use loom::cell::UnsafeCell;
use loom::sync::Condvar;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant;
#[allow(clippy::unused_self)] // as the standard library's
impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }
    pub(crate) fn elapsed(self) -> Duration {
        Duration::ZERO
    }
    pub(crate) fn saturating_duration_since(self, _: Self) -> Duration {
        Duration::ZERO
    }
}
impl std::ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, _: Duration) -> Self {
        self
    }
}

/// Thread of a model. loom's own wake publishes the waker's writes even to a thread that does not sleep; this
/// one only to a thread that parks.
#[derive(Clone, Default)]
pub(crate) struct Thread(Arc<(Mutex<bool>, Condvar)>);
impl Thread {
    pub(crate) fn unpark(&self) {
        let (woken, wake) = &*self.0;
        *lock(woken) = true;
        wake.notify_one();
    }
}
loom::thread_local! {
    static CURRENT: Thread = Thread::default();
}
pub(crate) mod thread {
    pub(crate) fn current() -> super::Thread {
        super::CURRENT.with(Clone::clone)
    }
}
pub(crate) fn park_timeout(_: Duration) {
    let thread = thread::current();
    let (woken, wake) = &*thread.0;
    let mut woken = lock(woken);
    while !*woken {
        woken = wake.wait(woken).expect("nothing panics under this lock");
    }
    *woken = false;
}

loom::lazy_static! {
    static ref FENCES: AtomicUsize = AtomicUsize::new(0);
}
/// Fence of a model. loom's own fence cannot move after the access before it, so it publishes what only that
/// access should. This fence can: it begins with an access of its own, which no code reads, and all fences
/// are tried in every order.
pub(crate) fn fence(order: Ordering) {
    FENCES.store(0, Ordering::Relaxed);
    loom::sync::atomic::fence(order);
}

/// Cell that is set once, and visible to other threads as late as the memory model allows.
pub(crate) struct OnceLock<T> {
    first: Mutex<()>,
    set: AtomicBool,
    value: std::sync::OnceLock<T>, // no thread waits here
}
impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { first: Mutex::new(()), set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }
    pub(crate) fn get(&self) -> Option<&T> {
        self.set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _first = lock(&self.first);
        self.value.set(value)?;
        self.set.store(true, Ordering::Release);
        Ok(())
    }
}
impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An element of a model's memory: the checker tracks its reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct Tracked(pub(crate) *const UnsafeCell<usize>);
// SAFETY: the checker ends the model if ranks access the same element at the same time.
unsafe impl Send for Tracked {}
// SAFETY: as above.
unsafe impl Sync for Tracked {}

/// Copies elements; for tracked ones, the values behind them.
///
/// # Safety
/// Same as [`std::ptr::copy_nonoverlapping`]; tracked elements point to live memory.
pub(crate) unsafe fn copy<S: Copy>(from: *const S, to: *mut S, elements: usize) {
    if type_name::<S>() != type_name::<Tracked>() {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, elements) };
    }
    for i in 0..elements {
        // SAFETY: the caller's promise; both are tracked, as was just checked.
        let (from, to) =
            unsafe { (&*(*from.add(i).cast::<Tracked>()).0, &*(*to.add(i).cast::<Tracked>()).0) };
        // SAFETY: the checker ends the model if others write what is read, or access what is written.
        from.with(|from| to.with_mut(|to| unsafe { *to = *from }));
    }
}
