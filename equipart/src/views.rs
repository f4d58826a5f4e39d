//! Views: ways of showing a run, one file each. A run tells events, and each view shows them in its own way.
//! No view knows a command.
pub mod csv;
pub mod json;
pub mod log;
pub mod plot;
pub mod progress;

use parallel::{Error, Result};
use run::event::{RunEvent, RunRecord};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use tensor::files;

/// A way of showing events.
pub trait RunView: Send {
    /// Shows an event.
    ///
    /// # Errors
    /// If it cannot be shown; the run ends.
    fn see(&mut self, event: &RunEvent) -> Result<()>;
    /// Ends the view after a run that did not fail.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The views of a run.
#[derive(Default)]
pub struct Views(Mutex<Vec<Box<dyn RunView>>>);

impl Views {
    /// Adds a view, if it is asked for.
    pub fn add(&mut self, view: Option<impl RunView + 'static>) {
        let all = self.0.get_mut().expect("no view panics");
        all.extend(view.map(|view| Box::new(view) as Box<dyn RunView>));
    }
    /// Shows an event in all views.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn see(&self, event: &RunEvent) -> Result<()> {
        self.0.lock().expect("no view panics").iter_mut().try_for_each(|view| view.see(event))
    }
    /// Ends all views.
    ///
    /// # Errors
    /// That of the first view that fails.
    pub fn end(self) -> Result<()> {
        self.0.into_inner().expect("no view panics").iter_mut().try_for_each(|view| view.end())
    }
}

/// Begins a file with this text. Returns a function that appends to it.
///
/// # Errors
/// If the file cannot be written; so does the function.
fn appended(path: &Path, text: &str) -> Result<impl FnMut(&str) -> Result<()> + Send + use<>> {
    files::replace_file(path, text.as_bytes())?;
    let name = path.display().to_string();
    let cannot = move |why: std::io::Error| Error::new(format!("{name} cannot be written: {why}"));
    let mut file = File::options().append(true).open(path).map_err(&cannot)?;
    Ok(move |more: &str| file.write_all(more.as_bytes()).map_err(&cannot))
}

/// A view of records of one kind.
struct OfKind<F>(&'static str, F);

impl<F: FnMut(&dyn RunRecord) -> Result<()> + Send> RunView for OfKind<F> {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Record(record) if record.kind() == self.0 => (self.1)(*record),
            _ => Ok(()),
        }
    }
}

/// Makes a view of records of one kind from a function.
pub fn of_kind(
    kind: &'static str,
    see: impl FnMut(&dyn RunRecord) -> Result<()> + Send + 'static,
) -> impl RunView {
    OfKind(kind, see)
}
