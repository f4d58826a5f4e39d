//! Progress on standard error.
use super::view::RunView;
use crate::terminal::watch::ProgressWatch;
use parallel::Result;
use run::event::RunEvent;
use run::train::StepLine;
use std::sync::Arc;

/// A view that shows steps on a bar, and notes beside it.
pub(crate) struct Progress {
    /// The bar.
    pub(crate) watch: Arc<ProgressWatch>,
    /// True if parts of other work and lines without a terminal are not shown.
    pub(crate) quiet: bool,
    /// True if the records are epochs of pictures.
    pub(crate) epochs: bool,
}

impl RunView for Progress {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Progress { what, of: 0, .. } => self.watch.say(what),
            RunEvent::Text(_) | RunEvent::Table { .. } => self.watch.done(),
            RunEvent::Progress { what, done, of } if !self.quiet => self.watch.part(what, *done, *of),
            RunEvent::Record(record) if record.kind() == StepLine::KIND => {
                self.watch.step(*record, self.quiet || self.epochs);
            }
            RunEvent::Record(record) if !self.quiet => {
                Some(record.words())
                    .filter(|words| !words.is_empty())
                    .iter()
                    .for_each(|words| self.watch.say(words));
            }
            _ => {}
        }
        Ok(())
    }
}
