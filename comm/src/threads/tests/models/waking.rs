//! Ranks that sleep until what they wait for changes.
use super::{explore, run};
use crate::call::Call;
use crate::error::{CommError, Result};
use crate::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use crate::sync::fence;
use crate::threads::watch::{PATIENT, PendingCalls, Wait, Watch};
use std::sync::Arc;

/// Rank 0 waits until the others have come.
struct WaitingRank {
    watch: Watch,
    came: Vec<AtomicBool>, // by rank; the first is not looked at
    vain: AtomicBool,
    call: Call,
}
impl WaitingRank {
    fn new(ranks: usize) -> Arc<Self> {
        let came = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        let watch = Watch::alone(ranks, PATIENT);
        Arc::new(Self { watch, came, vain: AtomicBool::new(false), call: Call::barrier() })
    }
    fn wait(&self) -> Result<()> {
        self.watch.wait(0, self)
    }
    fn come(&self, rank: usize) {
        self.came[rank].store(true, Release);
        fence(SeqCst); // as all who call `wake`
        self.watch.wake(0, rank);
    }
}
impl Wait for WaitingRank {
    fn missing(&self) -> impl Iterator<Item = usize> {
        (1..self.came.len()).filter(|&rank| !self.came[rank].load(Acquire))
    }
    fn in_vain(&self) -> Result<()> {
        self.watch.alive()?;
        let broken = CommError::Broken { rank: 1, reason: "left".into() };
        if self.vain.load(Relaxed) { Err(broken) } else { Ok(()) }
    }
    fn members(&self) -> Vec<usize> {
        (0..self.came.len()).collect()
    }
    fn pending(&self, _: usize) -> PendingCalls {
        unreachable!("nobody is late in a model")
    }
    fn call(&self) -> &Call {
        &self.call
    }
}

/// Kills: a sleeper that did not say so before its last look, or is looked for before the change.
#[test]
fn who_comes_wakes_who_sleeps_for_it() {
    explore(None, || run(&WaitingRank::new(2), &[|w| assert_eq!(w.wait(), Ok(())), |w| w.come(1)]));
}

/// Kills: one that sleeps on for a rank that has come, having been woken for another.
#[test]
fn who_waits_for_two_is_woken_by_both() {
    explore(Some(3), || {
        run(&WaitingRank::new(3), &[|w| assert_eq!(w.wait(), Ok(())), |w| w.come(1), |w| w.come(2)]);
    });
}

/// Kills: a sleeper that looks for failures before it says that it sleeps.
#[test]
fn who_fails_wakes_all_who_sleep() {
    explore(None, || {
        let dead = |w: &WaitingRank| assert!(matches!(w.wait(), Err(CommError::Dead { rank: 2, .. })));
        run(&WaitingRank::new(3), &[dead, |w| w.watch.fail(2, "on fire")]);
    });
}

/// Kills: a sleeper for one that has ended, though another is missing too.
#[test]
fn who_finishes_wakes_who_waits_for_it() {
    explore(None, || {
        let reported =
            |w: &WaitingRank| assert!(matches!(w.wait(), Err(CommError::Finished { rank: 2, .. })));
        run(&WaitingRank::new(3), &[reported, |w| w.watch.finish(2)]);
    });
}

/// Kills: a rank said never to come that came and then finished; a sleeper lost between the two.
#[test]
fn who_came_before_it_finished_has_come() {
    explore(None, || {
        let come = |w: &WaitingRank| {
            w.come(1);
            w.watch.finish(1);
        };
        run(&WaitingRank::new(2), &[|w| assert_eq!(w.wait(), Ok(())), come]);
    });
}

/// Kills: a sleeper that does not say so before it looks whether the wait is in vain.
#[test]
fn who_breaks_a_group_rouses_all_who_wait() {
    explore(None, || {
        let broken = |w: &WaitingRank| assert!(matches!(w.wait(), Err(CommError::Broken { .. })));
        let leave = |w: &WaitingRank| {
            w.vain.store(true, Relaxed);
            fence(SeqCst); // as all who call `wake_any`
            w.watch.wake_any(0);
        };
        run(&WaitingRank::new(2), &[broken, leave]);
    });
}
