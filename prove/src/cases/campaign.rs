//! Campaign: any number of cases, each drawn from its number in a chain, judged on some core, and reported in
//! order.
//!
//! The chain starts at a key, and each number is a hash of the one before. So the case after `n` others is
//! the first of a campaign that starts at its number: a campaign that ended can be continued. The report
//! depends on the key and on the number of cases, not on the number and speed of the cores.
use super::case::ProofCase;
use super::drawn::draw;
use super::report::CampaignReport;
use super::shrunk::shrunk;
use crate::{OracleTraces, Verdict, prove};
use comm::caught;
use parallel::{Error, Layout, Result, bail};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tensor::{Key, limits};

/// Proves a case under its key. An error or a panic is a verdict too, since every case should run to its end.
pub fn judge(case: &ProofCase) -> Verdict {
    let proof = || prove(&case.subject()?, &case.layout, &[case.key], &OracleTraces::default());
    let failed = |why| Verdict { error: Some(why), ..Verdict::default() };
    match caught(proof) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(Error { why, .. })) => failed(of_any_rank(why)),
        Err(panic) => failed(panic),
    }
}

/// Returns a failure's message without the rank's number: the first of several failing ranks depends on
/// timing.
pub(super) fn of_any_rank(why: String) -> String {
    match why.strip_prefix("rank ").and_then(|rest| rest.split_once(": ")) {
        Some((rank, why)) if rank.parse::<usize>().is_ok() => format!("a rank: {why}"),
        _ => why,
    }
}

/// Settings of a campaign: the cases to draw, their number, and their judge.
pub struct Campaign<'a> {
    /// The number of the first case.
    pub key: Key,
    /// Largest number of cases.
    pub cases: Option<usize>,
    /// Time after which no further case is started; the first case always is.
    pub until: Option<Instant>,
    /// Layout of all cases; `None` if layouts are drawn.
    pub layout: Option<Layout>,
    /// Function that judges a case.
    pub judge: &'a (dyn Fn(&ProofCase) -> Verdict + Sync),
}

/// A judged case: its place, its number, the case, and its verdict.
type JudgedCase = (usize, Key, ProofCase, Verdict);

/// The place and the number of the next case.
type Next = Mutex<(usize, Key)>;

impl Campaign<'_> {
    /// Judges case by case, on as many threads as there are cores. After each case, calls `reported` with the
    /// number of equal cases so far and the key to continue with.
    ///
    /// # Errors
    /// If no small model fits the layout, or the system refuses memory or a thread.
    pub fn run(&self, reported: &dyn Fn(usize, Key)) -> Result<CampaignReport> {
        if let Some(layout) = self.layout {
            super::fitted::fitted(layers::Shape::LLAMA, &(&layout).into()).ok_or_else(|| {
                Error::new(format!("no case can have the layout {layout}: no small model fits it"))
            })?;
        }
        let mut report = CampaignReport::new(self.key, self.layout);
        let next = Mutex::new((0, self.key));
        let stop = AtomicBool::new(false);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let failed = std::thread::scope(|scope| {
            let (sender, judged) = channel();
            for _ in 0..cores {
                let sender = sender.clone();
                limits::scoped(scope, || self.work(&next, &stop, sender));
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
                    reported(report.cases, number.next());
                }
            }
            None
        });
        let after = report.cases;
        let failure = |(number, outcome): (_, Verdict)| -> Result<_> {
            ended_well(&outcome.error)?; // or the machine would be taken for the case
            Ok(shrunk((after, number), self.layout, outcome, self.judge))
        };
        report.failure = failed.map(failure).transpose()?;
        report.equal = report.failure.is_none();
        Ok(report)
    }
    /// Work of one thread: judges the next case, until there is none.
    fn work(&self, next: &Next, stop: &AtomicBool, sender: Sender<JudgedCase>) {
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

/// Returns the system's refusal of memory or of a thread as an error, if a proof has failed after one.
///
/// # Errors
/// The refusal.
pub fn ended_well(error: &Option<String>) -> Result<()> {
    match limits::refusal().filter(|_| error.is_some()) {
        Some(why) => bail!("a proof did not end: {why}"),
        None => Ok(()),
    }
}
