//! Progress of a search for layouts on standard error, and its cut by Ctrl-C.
use parallel::{Error, Result};
use plan::clock::time;
use plan::watch::SearchEvent;
use plan::weighed::{Goal, Weighed};
use run::event::Observer;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time without a line: at the beginning, and between two lines.
const QUIET: Duration = Duration::from_secs(2);
/// Exit code after a second Ctrl-C, as of shells: 128 and the number of the signal.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Watch of a search.
pub(crate) struct SearchNotes<'a> {
    cut: Arc<AtomicBool>,
    last: Mutex<Instant>, // time of the last line, or the beginning
    observer: &'a Observer<'a>,
}

impl<'a> SearchNotes<'a> {
    /// Returns a watch that shows progress.
    pub(crate) fn new(observer: &'a Observer<'a>) -> Self {
        Self { cut: Arc::default(), last: Mutex::new(Instant::now()), observer }
    }
    /// Returns a watch that Ctrl-C cuts; a second Ctrl-C ends the process.
    ///
    /// # Errors
    /// If the system refuses to announce the signal.
    pub(crate) fn until_interrupted(observer: &'a Observer<'a>) -> Result<Self> {
        let notes = Self::new(observer);
        let heard = flag::register_conditional_shutdown(SIGINT, INTERRUPTED, notes.cut.clone())
            .and_then(|_| flag::register(SIGINT, notes.cut.clone()));
        heard.map_err(|why| Error::new(format!("Ctrl-C cannot be heard: {why}")))?;
        Ok(notes)
    }
    /// Shows an event, if the last line is old enough. Returns false if the search is to be cut.
    pub(crate) fn watch(&self, event: &SearchEvent) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= QUIET {
            drop(self.observer.doing(&said(event))); // the results tell of an error
            *last = Instant::now();
        }
        !self.is_cut()
    }
    /// Returns true if Ctrl-C cut the search.
    fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }
    /// Ends the watch: the next Ctrl-C ends the process.
    pub(crate) fn done(&self) {
        self.cut.store(true, Relaxed);
        drop(self.observer.doing(""));
    }
}

/// Describes an event in a line.
fn said(event: &SearchEvent) -> String {
    match event {
        SearchEvent::Pricing { left } => format!("pricing blocks and states: {left} left"),
        SearchEvent::Weighing { found, left, goal } => {
            let words = |best: &Weighed| {
                if *goal == Goal::Least {
                    let peak = tensor::readable(best.step.peak as u128);
                    return format!("; the least so far, {}, holds {peak}", best.layout);
                }
                format!("; the best so far, {}, takes {}", best.layout, time(best.step.seconds))
            };
            let none = if found.weighed > 0 { "; none fits yet" } else { "" };
            let best = found.best.first().map_or_else(|| none.into(), words);
            let doing = match goal {
                Goal::Least => "nothing fits yet; weighing layouts that save memory",
                _ => "weighing layouts",
            };
            format!("{doing}: {} are done, at most {} are left{best}", found.weighed, left())
        }
        SearchEvent::WeighingTexts { left, best } => {
            let best = best.map_or_else(String::new, |(layout, rate)| {
                format!("; the best so far, {layout}, makes {} tokens a second", run::words::amount(rate))
            });
            format!("weighing layouts: {left} are left{best}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parallel::Layout;
    use plan::step::StepTime;
    use plan::weighed::SearchResult;

    /// Kills: a layout that does not fit and is told as the best so far, a search of which nobody sees that
    /// nothing has fitted.
    #[test]
    fn progress_says_that_nothing_fits_yet() {
        let says = |best: Vec<Weighed>, weighed, goal| {
            let found = SearchResult { best, weighed, ..SearchResult::default() };
            said(&SearchEvent::Weighing { found: &found, left: &|| 5, goal })
        };
        let step = StepTime { seconds: 2.0, peak: 3000, ..StepTime::default() };
        let best = || vec![Weighed { layout: Layout::UNSPLIT, microbatches: 1, step: step.clone() }];
        let done = "weighing layouts: 3 are done, at most 5 are left";
        assert_eq!(says(vec![], 3, Goal::Time), format!("{done}; none fits yet"));
        assert_eq!(says(best(), 3, Goal::Time), format!("{done}; the best so far, none, takes 2.00 s"));
        let least = says(best(), 3, Goal::Least);
        assert!(
            least.starts_with("nothing fits yet; ")
                && least.ends_with("the least so far, none, holds 3.00 kB")
        );
    }
}
