//! Waits that are timed: each is attributed to the rank that was last seen missing, the late one.
use super::watch::{PendingCalls, Wait, Watch};
use crate::{Call, Result};
use std::cell::Cell;
use std::time::Instant;

impl Watch {
    /// Returns when no rank is missing. If the rank's waits are traced or counted, adds this one.
    ///
    /// # Errors
    /// As [`Watch::wait_on`].
    #[inline]
    pub(super) fn wait(&self, rank: usize, wait: &impl Wait) -> Result<()> {
        let record = self.record(rank);
        if !record.times_waits() {
            return self.wait_on(rank, wait).inspect_err(|_| self.waited_in_vain(rank, wait));
        }
        let Some(first) = wait.missing().next() else { return self.wait_on(rank, wait) };
        let from = Instant::now();
        let seen = SeenMissing { wait, last: Cell::new(first) };
        let outcome = self.wait_on(rank, &seen);
        record.waited(from);
        record.waited_for(seen.last.get(), from.elapsed(), wait.call());
        outcome.inspect_err(|_| self.waited_in_vain(rank, wait))
    }
    #[cold]
    fn waited_in_vain(&self, rank: usize, wait: &impl Wait) {
        wait.missing().next().inspect(|on| self.gave_up(rank, *on, wait.call().to_string()));
    }
}

/// A wait that remembers the rank last seen missing.
struct SeenMissing<'a, W> {
    wait: &'a W,
    last: Cell<usize>,
}

impl<W: Wait> Wait for SeenMissing<'_, W> {
    #[inline(always)]
    fn missing(&self) -> impl Iterator<Item = usize> {
        self.wait.missing().inspect(|rank| self.last.set(*rank))
    }
    fn in_vain(&self) -> Result<()> {
        self.wait.in_vain()
    }
    fn members(&self) -> Vec<usize> {
        self.wait.members()
    }
    fn pending(&self, on: usize) -> PendingCalls {
        self.wait.pending(on)
    }
    fn call(&self) -> &Call {
        self.wait.call()
    }
}
