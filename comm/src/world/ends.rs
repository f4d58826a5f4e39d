//! Ends of ranks: all are waited for, and a failure is told once, with the last calls of all ranks.
use super::{RankError, StuckReport, World};
use crate::FlightRecorder;
use crate::error::named_ranks;
use crate::flight::End;
use crate::process::FailedEnd;
use crate::threads::watch::Watch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Failures with which processes have ended, by rank.
pub(crate) type Reported = BTreeMap<usize, FailedEnd>;

impl World {
    /// Waits until all these ranks have ended; reports if they do not although the run has failed. If the
    /// ranks are processes and this one's has ended, another fails that makes no call and does not end
    /// either.
    pub(crate) fn listen(&self, watch: &Watch, mut running: BTreeSet<usize>, ended: &Receiver<usize>) {
        const PATIENCE: Duration = Duration::from_secs(10);
        // for reports of other processes, once this one's rank has ended
        const SOON: Duration = Duration::from_secs(1);
        let (mut stuck, mut processes) = (self.stuck.as_ref(), self.processes.as_ref());
        let mut since = Instant::now();
        while !running.is_empty() {
            let apart = processes.is_some_and(|own| !running.contains(&own.rank()));
            let failure = watch.failure().filter(|_| stuck.is_some() || processes.is_some());
            let Some((failed, reason)) = failure else {
                if !apart {
                    running.remove(&ended.recv().expect("one sender is the caller's"));
                    since = Instant::now();
                    continue;
                }
                let last =
                    running.iter().filter_map(|rank| watch.record(rank % self.size()).last_began()).max();
                let until = since.max(last.unwrap_or(since)) + self.limit;
                let left = until.saturating_duration_since(Instant::now());
                if let Ok(rank) = ended.recv_timeout(left + SOON) {
                    (since, _) = (Instant::now(), running.remove(&rank));
                } else if left.is_zero() {
                    let mut silent: Vec<_> = running.range(..self.size()).copied().collect();
                    silent.extend(silent.is_empty().then_some(0)); // its order has not ended
                    let (which, limit) = (named_ranks(&silent), self.limit);
                    let reason = format!(
                        "{which} made no call and did not end within {limit:?}; all others have ended"
                    );
                    watch.fail(silent[0], &reason);
                }
                continue;
            };
            if let Ok(rank) = ended.recv_timeout(self.limit.min(if apart { SOON } else { PATIENCE })) {
                running.remove(&rank);
            } else if let Some(processes) = processes.take_if(|own| !running.contains(&own.rank())) {
                processes.leave(); // the other processes report their own failures
            } else if let Some(StuckReport(report)) = stuck.take() {
                let error = self.failure(watch, (*failed, reason), &running, &Reported::new());
                report(&error, &running.iter().copied().collect::<Vec<_>>());
            }
        }
    }
    /// Returns the failure of a run, which is a rank's and has this reason, while these ranks still run; from
    /// then on their calls are in the trace. Lets another process tell of it that does.
    pub(crate) fn failure(
        &self,
        watch: &Watch,
        (rank, reason): (usize, &str),
        running: &BTreeSet<usize>,
        reported: &Reported,
    ) -> RankError {
        self.trace(watch);
        let end = |rank| match running.contains(&rank) {
            true => End::Runs,
            false if watch.has_finished(rank) => End::Well,
            false => End::Failed,
        };
        let seen = |rank: usize| watch.record(rank).last_calls(watch.waited(rank));
        let calls = |rank: usize| reported.get(&rank).map_or_else(|| seen(rank), |(_, calls)| calls.clone());
        let ranks: Vec<_> = (0..self.size()).map(|rank| (calls(rank), end(rank))).collect();
        let told_by = self.processes.as_ref().and_then(|processes| {
            let teller = reported.keys().next()?; // none, if all others had ended well
            (*teller != processes.rank()).then_some(*teller)
        });
        told_by.inspect(|&teller| self.processes.iter().for_each(|processes| processes.let_tell(teller)));
        RankError { rank, reason: reason.to_string(), calls: FlightRecorder::new(rank, &ranks), told_by }
    }
}

/// Reports that a rank's thread has ended, however it ends; the thread that started it waits until all have.
pub(crate) struct EndReport(pub(super) usize, pub(super) Sender<usize>);
impl Drop for EndReport {
    fn drop(&mut self) {
        let _ = self.1.send(self.0);
    }
}
