//! Waits between processes. A call is reported to its own ranks only, so the others do not see how long one
//! of them waits. A rank that has waited for a tenth of the limit tells it to all, and tells when it goes on:
//! so chains and rings of ranks that wait for each other are found across groups.
use super::{Waits, Watch};
use crate::sync::{Instant, lock};
use crate::threads::arrival::Wait;
use std::time::Duration;

/// This process' rank, and the function that tells the ranks outside of a group, given its members, for which
/// rank this one waits and in which call; none if it goes on.
pub(super) type Tells = (usize, Box<TellsOf>);
type TellsOf = dyn Fn(&[usize], Option<(usize, String)>) + Send + Sync;

/// A wait of this process' rank, which may have been told.
pub(super) struct ToldWait<'a> {
    tells: &'a TellsOf,
    told: Option<(usize, Vec<usize>)>, // the rank that is waited for, and the members
}

impl ToldWait<'_> {
    /// Tells that the rank waits, unless that was told.
    pub(super) fn waits(&mut self, on: usize, wait: &impl Wait) {
        if self.told.as_ref().is_none_or(|(told, _)| *told != on) {
            let members = wait.members();
            (self.tells)(&members, Some((on, wait.call().to_string())));
            self.told = Some((on, members));
        }
    }
    /// Tells that the rank goes on, if its wait was told.
    pub(super) fn goes_on(&mut self) {
        self.told.take().inspect(|(_, members)| (self.tells)(members, None));
    }
}

impl Watch {
    /// Sets the function by which a rank tells long waits to the processes of other ranks.
    pub(crate) fn tell_by(
        &self,
        rank: usize,
        tells: impl Fn(&[usize], Option<(usize, String)>) + Send + Sync + 'static,
    ) {
        let _ = self.tells.set((rank, Box::new(tells))); // once for each run
    }
    pub(super) fn tells_of(&self, rank: usize) -> Option<ToldWait<'_>> {
        let (own, tells) = self.tells.get()?;
        (*own == rank).then_some(ToldWait { tells, told: None })
    }
    /// Time after which a wait is told.
    pub(super) fn told_after(&self) -> Duration {
        self.limit / 10
    }
    /// Records what a rank of another process has told. A wait counts when it stands for as long again: the
    /// rank would have told by then that it goes on. A wait in which its stand-in has given up counts
    /// already.
    pub(crate) fn told(&self, rank: usize, wait: Option<(usize, String)>) {
        let mut waits = lock(&self.ranks[rank].waits);
        let given_up = waits.as_ref().filter(|waits| waits.over).map(|waits| (waits.on, &waits.call));
        if given_up.is_some_and(|(on, call)| wait.as_ref() == Some(&(on, call.clone()))) {
            return;
        }
        let (since, after) = (Instant::now(), self.told_after());
        let pending = Box::new(move || since.elapsed() >= after);
        *waits = wait.map(|(on, call)| Waits { on, call, pending, over: false });
    }
}
