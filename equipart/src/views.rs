//! Views: ways of showing a run, one file each. A run tells events, and each view shows them in its own way.
//! No view knows a command. A view that writes a file has a flag, which is made from its entry in the list.
pub mod csv;
pub mod json;
pub mod lines;
pub mod log;
pub mod plot;
pub mod progress;
pub mod report;
pub mod tensorboard;
pub mod view;

use crate::terminal::out;
use parallel::Result;
use run::event::{Observe, RunEvent, RunRecord};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Mutex;
use view::{RunView, ViewContext, ViewInfo, unread};

/// The views that have flags.
pub static VIEWS: [&ViewInfo; 4] = [&csv::CSV, &plot::PLOT, &report::REPORT, &tensorboard::TENSORBOARD];

/// A view that a flag asks for, and its path.
pub type AskedView = (&'static ViewInfo, PathBuf);

/// The views of a run: an observer that shows each event in all of them.
pub struct Views(Mutex<OpenViews>);

/// The views that are open, and those that are opened with the first event: until then a command may be
/// refused, which leaves their files as they are.
struct OpenViews {
    is_json: bool,
    title: String, // of the run, in a few words
    all: Vec<Box<dyn RunView>>,
    asked: Vec<AskedView>,
}

impl Views {
    /// The terminal, or JSON for scripts, and the views that flags ask for, whose files rank 0 writes, with
    /// the title of the run.
    #[must_use]
    pub fn new(is_json: bool, title: String, asked: Vec<AskedView>) -> Self {
        let lines: Box<dyn RunView> =
            if is_json { Box::new(json::JsonLines) } else { Box::new(lines::Lines) };
        let progress = Box::new(progress::Progress::new(is_json));
        let views: Vec<Box<dyn RunView>> = vec![progress, Box::new(lines::NoteLines), lines];
        let asked = if out::is_silent() { Vec::new() } else { asked };
        Self(Mutex::new(OpenViews { is_json, title, all: views, asked }))
    }
    fn all<T>(&self, with: impl FnOnce(&mut OpenViews) -> T) -> T {
        with(&mut self.0.lock().expect("no view panics"))
    }
    /// Adds a view.
    pub fn add(&self, view: impl RunView + 'static) {
        self.all(|open| open.all.push(Box::new(view)));
    }
    /// Opens the views that flags ask for. `name` is the run's beside others.
    ///
    /// # Errors
    /// If a file cannot be written, or the command has read it.
    pub fn open(&self, name: &str) -> Result<()> {
        self.all(|open| open.open(name))
    }
    /// Gives all views a record of an earlier run.
    pub fn earlier(&self, record: &dyn RunRecord) {
        self.all(|open| open.all.iter_mut().for_each(|view| view.earlier(record)));
    }
    /// Runs what shows itself in the views, ends them all, and returns its outcome.
    ///
    /// # Errors
    /// That of the run, else that of the first view that fails.
    pub fn during<T>(self, run: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let outcome = run(&self).and_then(|value| self.open("this run").map(|()| value));
        let failure = outcome.as_ref().err().map(|error| error.why.clone());
        let mut open = self.0.into_inner().expect("no view panics");
        let ended: Vec<_> = open.all.iter_mut().map(|view| view.end(failure.as_deref())).collect();
        let value = outcome?;
        ended.into_iter().collect::<Result<()>>().map(|()| value)
    }
}

impl OpenViews {
    fn open(&mut self, name: &str) -> Result<()> {
        let context = ViewContext { title: &self.title, name };
        let asked = std::mem::take(&mut self.asked);
        asked.iter().try_for_each(|(view, path)| unread(view.flag, path))?;
        let opened = asked.iter().map(|(view, path)| (view.open)(path, &context));
        self.all.extend(opened.collect::<Result<Vec<_>>>()?);
        Ok(())
    }
}

impl Observe for Views {
    fn see(&self, event: &RunEvent) -> Result<()> {
        self.all(|open| {
            if !matches!(event, RunEvent::Note(_)) {
                open.open("this run")?;
            }
            open.all.iter_mut().try_for_each(|view| view.see(event))
        })
    }
    fn wants_words(&self) -> bool {
        self.wants_details() || self.all(|open| !open.is_json)
    }
    fn wants_details(&self) -> bool {
        let wants = |(view, _): &AskedView| view.wants_details;
        self.all(|open| open.asked.iter().any(wants) || open.all.iter().any(|view| view.wants_details()))
    }
    fn see_detail(&self, event: &RunEvent) -> Result<()> {
        self.all(|open| {
            open.open("this run")?;
            open.all.iter_mut().filter(|view| view.wants_details()).try_for_each(|view| view.see(event))
        })
    }
}

impl Deref for Views {
    type Target = dyn Observe;
    fn deref(&self) -> &Self::Target {
        self
    }
}
