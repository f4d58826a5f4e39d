//! Any number of cases: each drawn from its number in a chain, judged on some core, reported in order.
//!
//! The chain begins at a key, and each number is a hash of the one before. So the case after `n` others is the first of
//! a campaign that begins at its number: one that ends can be gone on with. What is reported depends on the key and on how
//! many cases there were, not on how many cores or how fast they are.
use super::report::CampaignReport;
use super::shrunk::shrunk;
use super::{Case, draw};
use crate::{Difference, Truths, Verdict, locate, prove};
use comm::caught;
use parallel::{Error, Layout, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tensor::Key;

/// Proves a case under its key. An error or a panic is a verdict too, since it should run to its end.
pub fn judge(case: &Case) -> Verdict {
    let proof = || prove(&case.subject()?, &case.layout, &[case.key], &Truths::default());
    let failed = |why| Verdict { error: Some(why), ..Verdict::default() };
    match caught(proof) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(Error { why, .. })) => failed(of_any_rank(why)),
        Err(panic) => failed(panic),
    }
}

/// A failure's sentence without the rank's number: which of several that fail is first is a matter of time.
pub(super) fn of_any_rank(why: String) -> String {
    match why.strip_prefix("rank ").and_then(|rest| rest.split_once(": ")) {
        Some((rank, why)) if rank.parse::<usize>().is_ok() => format!("a rank: {why}"),
        _ => why,
    }
}

/// A case that is not equal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// How many cases were equal before it.
    pub after: usize,
    /// The number that it was drawn from: the key of a campaign that begins with it.
    #[serde(with = "super::case::written")]
    pub number: Key,
    /// What it was shrunk to.
    pub case: Case,
    /// What differs there first; none if it fails otherwise.
    pub first_difference: Option<Difference>,
    /// What it says; none if something differs.
    pub error: Option<String>,
}

/// What is to be drawn, how many of it, and who judges.
pub struct Campaign<'a> {
    /// The number of the first case.
    pub key: Key,
    /// The most cases.
    pub cases: Option<usize>,
    /// When no further case is begun; the first always is.
    pub until: Option<Instant>,
    /// The layout of all cases, if it is not to be drawn.
    pub layout: Option<Layout>,
    /// Who says what comes of a case.
    pub judge: &'a (dyn Fn(&Case) -> Verdict + Sync),
}

/// One case that was judged: its place, its number, and what came of it.
type Judged = (usize, Key, Case, Verdict);

/// The place and the number of the next case.
type Next = Mutex<(usize, Key)>;

impl Campaign<'_> {
    /// Judges case by case, on as many threads as there are cores. `told`: how many cases were equal so far, and the key
    /// to go on with, after each.
    ///
    /// # Errors
    /// If no small model fits the layout.
    pub fn run(&self, told: &dyn Fn(usize, Key)) -> Result<CampaignReport> {
        if let Some(layout) = self.layout {
            super::fitted::fitted(layers::Shape::LLAMA, &(&layout).into()).ok_or_else(|| {
                Error::new(format!("no case has the layout {layout}: it fits no small model"))
            })?;
        }
        let mut report = CampaignReport::new(self.key, self.layout);
        let (next, stop) = (Mutex::new((0, self.key)), AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let failed = std::thread::scope(|scope| {
            let (sender, judged) = channel();
            for _ in 0..cores {
                let sender = sender.clone();
                scope.spawn(|| self.work(&next, &stop, sender));
            }
            drop(sender);
            let mut waiting = BTreeMap::new();
            for (place, number, case, outcome) in judged {
                waiting.insert(place, (number, case, outcome));
                while let Some((number, case, outcome)) = waiting.remove(&report.cases) {
                    if !outcome.equal {
                        stop.store(true, Ordering::Relaxed);
                        return Some((number, outcome));
                    }
                    report.add(&case, &outcome, number.next());
                    told(report.cases, number.next());
                }
            }
            None
        });
        let after = report.cases;
        let failure = |(number, outcome)| shrunk((after, number), self.layout, outcome, self.judge);
        report.failure = failed.map(failure);
        report.equal = report.failure.is_none();
        Ok(report)
    }
    /// What a thread does: the next case, until there is none.
    fn work(&self, next: &Next, stop: &AtomicBool, sender: Sender<Judged>) {
        while let Some((place, number)) = self.take(next, stop) {
            let case = draw(number.0, self.layout);
            let outcome = (self.judge)(&case);
            if sender.send((place, number, case, outcome)).is_err() {
                return; // a case before this one failed
            }
        }
    }
    fn take(&self, next: &Next, stop: &AtomicBool) -> Option<(usize, Key)> {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = self.cases.is_some_and(|cases| next.0 >= cases)
            || (next.0 > 0 && self.until.is_some_and(|until| Instant::now() >= until))
            || stop.load(Ordering::Relaxed);
        let taken = *next;
        *next = (taken.0 + 1, taken.1.next());
        (!enough).then_some(taken)
    }
}

impl Failure {
    /// This failure with what comes before the difference; it takes another run, in which everything is looked at. If that
    /// run tells nothing, what is known stays.
    #[must_use]
    pub fn located(mut self) -> Self {
        let locate = || locate(&self.case.subject()?, &self.case.layout, &[self.case.key]);
        if let Some(seen) = self.first_difference.take() {
            let located = caught(locate).ok().and_then(Result::ok).flatten();
            self.first_difference = Some(located.unwrap_or(seen));
        }
        self
    }
}
