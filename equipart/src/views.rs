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

use crate::terminal::watch::ProgressWatch;
use parallel::Result;
use progress::Progress;
use run::event::{self, Observer, RunEvent, RunRecord};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use view::{RunView, ViewContext, ViewInfo};

/// The views that have flags.
pub static VIEWS: [&ViewInfo; 4] = [&csv::CSV, &plot::PLOT, &report::REPORT, &tensorboard::TENSORBOARD];

/// The views of a run.
#[derive(Default)]
pub struct Views(Mutex<Vec<Box<dyn RunView>>>);

impl Views {
    /// Lines for people, or JSON for scripts, on standard output.
    #[must_use]
    pub fn printed(is_json: bool) -> Self {
        let mut views = Self::default();
        views.print(is_json, "");
        views
    }
    /// Adds the views of standard output and standard error; JSON without records of a kind.
    pub fn print(&mut self, is_json: bool, without: &'static str) {
        self.add(lines::NoteLines);
        if is_json { self.add(json::JsonLines { without }) } else { self.add(lines::Lines) }
    }
    /// Adds a view.
    pub fn add(&mut self, view: impl RunView + 'static) {
        self.all().push(Box::new(view));
    }
    /// Adds progress on standard error, which is cleared before results are printed.
    pub(crate) fn watched(mut self, watch: impl Into<Arc<ProgressWatch>>) -> Self {
        self.all().insert(0, Box::new(Progress { watch: watch.into(), quiet: false, epochs: false }));
        self
    }
    /// Opens the views of flags, each with its path.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn open(&mut self, asked: &[(&ViewInfo, PathBuf)], context: &ViewContext) -> Result<()> {
        let opened = asked.iter().map(|(view, path)| (view.open)(path, context));
        let opened: Vec<_> = opened.collect::<Result<_>>()?;
        self.all().extend(opened);
        Ok(())
    }
    fn all(&mut self) -> &mut Vec<Box<dyn RunView>> {
        self.0.get_mut().expect("no view panics")
    }
    /// Gives all views a record of an earlier run.
    pub fn earlier(&mut self, record: &dyn RunRecord) {
        self.all().iter_mut().for_each(|view| view.earlier(record));
    }
    /// Shows an event in all views.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn see(&self, event: &RunEvent) -> Result<()> {
        self.0.lock().expect("no view panics").iter_mut().try_for_each(|view| view.see(event))
    }
    /// Shows words.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn say(&self, words: &str) -> Result<()> {
        self.see(&RunEvent::Text(words))
    }
    /// Shows an object for scripts.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn object(&self, value: &impl Serialize) -> Result<()> {
        event::object(value, &|event| self.see(event))
    }
    /// Shows a table of words.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn table(&self, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        event::table(heads, rows, &|event| self.see(event))
    }
    /// Shows the table that people see of records.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn records<'a>(&self, rows: impl IntoIterator<Item = &'a (impl RunRecord + 'a)>) -> Result<()> {
        event::tell_table(rows, &|event| self.see(event))
    }
    /// Shows details, which are made only if a view wants them, in those views. Where they cannot be made,
    /// the views say why, and the run goes on.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn details(&self, tell: impl FnOnce(&Observer) -> Result<()>) -> Result<()> {
        let show = |event: &RunEvent| {
            let mut views = self.0.lock().expect("no view panics");
            views.iter_mut().filter(|view| view.wants_details()).try_for_each(|view| view.see(event))
        };
        let wanted = self.0.lock().expect("no view panics").iter().any(|view| view.wants_details());
        match if wanted { tell(&show) } else { Ok(()) } {
            Ok(()) => Ok(()),
            Err(why) => show(&RunEvent::Note(&format!("note: the report lacks details: {why}"))),
        }
    }
    /// Runs what shows itself in the views, ends them all, and returns its outcome.
    ///
    /// # Errors
    /// That of the run, else that of the first view that fails.
    pub fn during<T>(mut self, run: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let outcome = run(&self);
        let failure = outcome.as_ref().err().map(|error| error.why.clone());
        let ended: Vec<_> = self.all().iter_mut().map(|view| view.end(failure.as_deref())).collect();
        let value = outcome?;
        ended.into_iter().collect::<Result<()>>().map(|()| value)
    }
}
