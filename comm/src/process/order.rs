//! Order in which the place of each process does what ranks do together, if places do that as a whole.
//!
//! Each process finds at a moment of its own that all ranks have entered a call. If each went by that, two
//! GPUs could take up two calls in two orders, and each wait in its first call for the other. So rank 0's
//! process decides the order, which is its own. It sends the order to the other ranks of each call, over
//! connections that carry nothing else: calls on the others may wait for this order.
use super::connection::gave_up;
use super::frame::{Name, exited};
use super::shares::SumName;
use crate::panics::caught;
use crate::process::processes::Processes;
use crate::{CommError, Result};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensor::PlaceError;

/// Interval at which a waiting rank checks if the run has failed.
const EVERY: Duration = Duration::from_millis(20);

/// The order of the calls of one run.
pub(crate) struct Order {
    processes: Arc<Processes>,
    alive: Box<dyn Fn() -> Result<()> + Send + Sync>,
    limit: Duration,
    state: Mutex<OrderState>,
    changed: Condvar,
}

/// Does this process' part of a call, given the bytes that rank 0's place drew for the group.
pub(crate) type CallPart = Box<dyn FnOnce(&[u8]) + Send>;

#[derive(Default)]
struct OrderState {
    waiting: BTreeMap<Name, (Arc<[usize]>, CallPart)>, // all ranks have entered; it is not their turn
    runs: bool,
    over: bool, // this process' rank has ended or failed: no more parts are done
    drawn: BTreeMap<Arc<[usize]>, Vec<u8>>,
    failed: Option<String>,
}

impl Order {
    /// Returns the order of a run of these processes. Waits last at most `limit`, and end when `alive` fails.
    pub(crate) fn new(
        processes: &Arc<Processes>,
        limit: Duration,
        alive: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (processes, alive) = (processes.clone(), Box::new(alive));
        Arc::new(Self { processes, alive, limit, state: Mutex::default(), changed: Condvar::new() })
    }
    /// Sends the share of this process' rank in an all-reduce to the other ranks.
    pub(crate) fn give_share(&self, name: &SumName, share: &Arc<[u8]>) {
        self.processes.shares().give(name, share);
    }
    /// Waits for a rank's share in an all-reduce, and passes it to `read`, with its length in bytes. Returns
    /// false if it does not arrive in time.
    ///
    /// # Errors
    /// If a rank has failed, or this rank's connection ended: its stand-in may itself wait for this rank.
    pub(super) fn take_share(
        &self,
        rank: usize,
        name: &SumName,
        read: &mut dyn FnMut(usize, &mut dyn Read) -> io::Result<()>,
    ) -> Result<bool> {
        const SOON: Duration = Duration::from_secs(1); // for the report of why the connection ended
        let begun = Instant::now();
        let mut waits_on = || (self.alive)().is_ok() && begun.elapsed() <= self.limit;
        let Err(why) = self.processes.shares().take(rank, name, &mut waits_on, read) else { return Ok(true) };
        let broke = (!gave_up(&why)).then(Instant::now);
        while broke.is_some_and(|at| at.elapsed() < SOON) && (self.alive)().is_ok() {
            std::thread::sleep(EVERY);
        }
        (self.alive)()?;
        broke.map_or(Ok(false), |_| Err(CommError::Dead { rank, reason: exited(why) }))
    }
    /// This process' rank.
    pub(crate) fn own(&self) -> usize {
        self.processes.rank()
    }
    fn state(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, state: MutexGuard<'a, OrderState>) -> MutexGuard<'a, OrderState> {
        self.changed.wait_timeout(state, EVERY).unwrap_or_else(PoisonError::into_inner).0
    }
    /// Records that all these ranks have entered a call. Rank 0's process sends its name to the others and
    /// does its own part now, if it has one; the others do their parts when it is their turn. A group that
    /// meets for the first time gets the bytes that `draws` draws.
    pub(crate) fn arrived(
        &self,
        name: Name,
        members: &Arc<[usize]>,
        draws: impl FnOnce() -> Vec<u8>,
        part: CallPart,
    ) {
        let process = self.own();
        let mut state = self.state();
        if process > 0 {
            if members.contains(&process) && !state.over {
                state.waiting.insert(name, (members.clone(), part));
                self.changed.notify_all();
            }
            return;
        }
        if state.failed.is_some() {
            return;
        }
        let done = caught(|| {
            let new = !state.drawn.contains_key(members);
            let drawn = state.drawn.entry(members.clone()).or_insert_with(draws);
            let message = (name, if new { drawn.clone() } else { Vec::new() });
            self.processes.say(&Some(message), |rank| members.contains(&rank));
            if members.contains(&process) {
                part(drawn);
            }
        });
        state.failed = done.err();
    }
    /// Waits until this process has done its part in every call that all ranks entered.
    ///
    /// # Errors
    /// If a rank has failed.
    ///
    /// # Panics
    /// With [`PlaceError`], if a part failed, or rank 0's process did not send the order in time.
    pub(crate) fn finish_parts(&self) -> Result<()> {
        self.quiet()?.map_or(Ok(()), |why| PlaceError(why).unwind())
    }
    /// Waits as [`Order::finish_parts`] does; returns why a part failed, if one did. No part is left to be
    /// done later.
    ///
    /// # Errors
    /// If a rank has failed.
    pub(crate) fn quiet(&self) -> Result<Option<String>> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let alive = if state.waiting.is_empty() { Ok(()) } else { (self.alive)() };
            if alive.is_err() || state.failed.is_some() {
                let failed = state.failed.clone();
                self.ends(state);
                return alive.map(|()| failed);
            }
            if state.waiting.is_empty() && !state.runs {
                return Ok(None);
            }
            if begun.elapsed() > self.limit {
                let limit = self.limit;
                state.failed = Some(format!("rank 0's process did not send the next call within {limit:?}"));
            }
            state = self.wait(state);
        }
    }
    /// Ends this process' rank: no part is done from now on.
    pub(crate) fn end(&self) {
        self.ends(self.state());
    }
    fn ends(&self, mut state: MutexGuard<'_, OrderState>) {
        state.over = true;
        state.waiting.clear();
        self.changed.notify_all();
        while state.runs {
            state = self.wait(state);
        }
    }
    /// Announces from rank 0 to the other processes that this run has no more calls.
    pub(crate) fn ended(&self) {
        self.processes.say(&None, |_| true);
    }
    /// Does this process' parts in the order that rank 0's process sends, until that process sends no more or
    /// has exited.
    pub(crate) fn follow(&self) {
        while let Some((name, drawn)) = self.processes.message() {
            let mut state = self.state();
            let (members, part) = loop {
                if state.over {
                    break (Vec::new().into(), None);
                }
                if let Some((members, part)) = state.waiting.remove(&name) {
                    break (members, Some(part));
                }
                state = self.wait(state);
            };
            let Some(part) = part else { continue };
            if !drawn.is_empty() {
                state.drawn.insert(members.clone(), drawn);
            }
            let drawn = state.drawn.get(&members).cloned().unwrap_or_default();
            state.runs = true;
            drop(state);
            let done = caught(|| part(&drawn));
            let mut state = self.state();
            state.runs = false;
            state.failed = state.failed.take().or(done.err());
            self.changed.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
