//! Progress of a search for layouts, told every few seconds.
use crate::event::Observer;
use plan::clock::time;
use plan::watch::SearchEvent;
use plan::weighed::{Goal, Weighed};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time without a line: at the beginning, and between two lines.
const QUIET: Duration = Duration::from_secs(2);

/// Watch of a search.
pub struct SearchNotes<'a> {
    cut: Arc<AtomicBool>,
    last: Mutex<Instant>, // time of the last line, or the beginning
    observer: &'a Observer<'a>,
}

impl<'a> SearchNotes<'a> {
    /// Returns a watch that tells progress, and cuts the search once `cut` is true.
    pub fn new(observer: &'a Observer<'a>, cut: Arc<AtomicBool>) -> Self {
        Self { cut, last: Mutex::new(Instant::now()), observer }
    }
    /// Shows an event, if the last line is old enough. Returns false if the search is to be cut.
    pub fn watch(&self, event: &SearchEvent) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= QUIET {
            drop(self.observer.doing(&said(event))); // the results tell of an error
            *last = Instant::now();
        }
        !self.cut.load(Relaxed)
    }
    /// Ends the watch, and counts the search as cut.
    pub fn done(&self) {
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
                format!("; the best so far, {layout}, makes {} tokens a second", crate::words::amount(rate))
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
