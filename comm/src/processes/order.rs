//! In which order the place of each process does what ranks do together, where places do that as a whole.
//!
//! Each process finds that all ranks have come to a call at a moment of its own. Were each to go by that, two cards could take up two
//! calls in two orders, and wait in them for each other. So rank 0's process says in which order: its own, told to the other
//! ranks of each call by connections that carry nothing else, since calls on the others may wait for this order.
use super::meeting::Processes;
use crate::Result;
use crate::threads::caught;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensor::PlaceError;

/// How often who waits looks whether the run has failed.
const EVERY: Duration = Duration::from_millis(20);

/// The order of one run.
pub(crate) struct Order {
    processes: Arc<Processes>,
    alive: Box<dyn Fn() -> Result<()> + Send + Sync>,
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// What all ranks have come to, by the name that all processes know it by: a rank of the world, and which of its calls it is.
pub(crate) type Name = [usize; 2];
/// What rank 0's process says: the name of a call, and what was drawn for its group, if that is new; none if there are no more.
pub(super) type Said = Option<(Name, Vec<u8>)>;
/// Does the part of this process; it is given what rank 0's place drew for the group.
pub(crate) type Part = Box<dyn FnOnce(&[u8]) + Send>;

#[derive(Default)]
struct State {
    waiting: BTreeMap<Name, (Arc<[usize]>, Part)>, // all have come, and it is not their turn
    runs: bool,
    over: bool, // this process' rank has ended, or failed: nothing is done any more
    drawn: BTreeMap<Arc<[usize]>, Vec<u8>>,
    failed: Option<String>,
}

impl Order {
    /// Of a run of these processes, in which nothing is waited for any longer than this, or when it has failed.
    pub(crate) fn new(
        processes: &Arc<Processes>,
        limit: Duration,
        alive: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (processes, alive) = (processes.clone(), Box::new(alive));
        Arc::new(Self { processes, alive, limit, state: Mutex::default(), changed: Condvar::new() })
    }
    /// This process' rank.
    pub(crate) fn own(&self) -> usize {
        self.processes.rank()
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, EVERY).unwrap_or_else(PoisonError::into_inner).0
    }
    /// All of these ranks have come. Rank 0's process does its part now, if it has one, and says so to the others; they do
    /// theirs when it is their turn. A group that meets for the first time is given what `draws` draws.
    pub(crate) fn came(
        &self,
        name: Name,
        members: &Arc<[usize]>,
        draws: impl FnOnce() -> Vec<u8>,
        part: Part,
    ) {
        let (own, mut state) = (self.own(), self.state());
        if own > 0 {
            if members.contains(&own) && !state.over {
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
            let said = (name, if new { drawn.clone() } else { Vec::new() });
            self.processes.say(&Some(said), |rank| members.contains(&rank));
            if members.contains(&own) {
                part(drawn);
            }
        });
        state.failed = done.err();
    }
    /// Waits until this process has done its part in all that all have come to.
    ///
    /// # Errors
    /// That a rank has failed.
    ///
    /// # Panics
    /// With [`PlaceError`], if a part failed, or rank 0's process did not say whose turn it is.
    pub(crate) fn settled(&self) -> Result<()> {
        self.quiet()?.map_or(Ok(()), |why| PlaceError(why).unwind())
    }
    /// Waits as [`Order::settled`] does; why a part failed, if one did. None is left that could be done later.
    ///
    /// # Errors
    /// That a rank has failed.
    pub(crate) fn quiet(&self) -> Result<Option<String>> {
        let (begun, mut state) = (Instant::now(), self.state());
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
                state.failed =
                    Some(format!("rank 0's process did not say within {limit:?} what is done next"));
            }
            state = self.wait(state);
        }
    }
    /// This process' rank has ended: no part is done from now on.
    pub(crate) fn end(&self) {
        self.ends(self.state());
    }
    fn ends(&self, mut state: MutexGuard<'_, State>) {
        state.over = true;
        state.waiting.clear();
        self.changed.notify_all();
        while state.runs {
            state = self.wait(state);
        }
    }
    /// Rank 0's process says nothing more in this run.
    pub(crate) fn ended(&self) {
        self.processes.say(&None, |_| true);
    }
    /// Does this process' parts, each when rank 0's process says, until that says that there are no more, or is gone.
    pub(crate) fn follow(&self) {
        while let Some((name, drawn)) = self.processes.said() {
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
