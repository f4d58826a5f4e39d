//! A view: what it sees of a run, how it is opened by a flag; and what views that write records share.
use parallel::{Error, Result};
use run::event::{RunEvent, RunRecord};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use tensor::files;

/// A way of showing events.
pub trait RunView: Send {
    /// Shows an event.
    ///
    /// # Errors
    /// If it cannot be shown; the run ends.
    fn see(&mut self, event: &RunEvent) -> Result<()>;
    /// Takes in a record of an earlier run, which this run resumes.
    fn earlier(&mut self, _record: &dyn RunRecord) {}
    /// Returns true if the view shows tables and pictures that are made for it alone.
    fn wants_details(&self) -> bool {
        false
    }
    /// Ends the view, also after a run that failed, with the reason.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn end(&mut self, _failure: Option<&str>) -> Result<()> {
        Ok(())
    }
}

/// Facts that a view is told of a run before it begins.
pub struct ViewContext<'a> {
    /// Name of what runs, in a few words.
    pub title: &'a str,
    /// Name of the run beside others.
    pub name: &'a str,
    /// Kind of records that only logs and curves show.
    pub without: &'static str,
}

/// A view that writes to a file or a folder, and its flag.
#[derive(Debug)]
pub struct ViewInfo {
    /// Name of the flag.
    pub flag: &'static str,
    /// Name of the flag's value in the help.
    pub value: &'static str,
    /// The flag's help.
    pub help: &'static str,
    /// Results that a run must have for this view: [`RECORDS`], [`CURVES`].
    pub needs: u8,
    /// Opens the view.
    pub open: fn(&Path, &ViewContext) -> Result<Box<dyn RunView>>,
}

/// The run has results that are rows of one table.
pub const RECORDS: u8 = 1;
/// The run has results over steps.
pub const CURVES: u8 = 2;

/// Begins a file with this text. Returns a function that appends to it.
///
/// # Errors
/// If the file cannot be written; so does the function.
pub fn appended(path: &Path, text: &[u8]) -> Result<impl FnMut(&[u8]) -> Result<()> + Send + use<>> {
    files::replace_file(path, text)?;
    let name = path.display().to_string();
    let cannot = move |why: std::io::Error| Error::new(format!("{name} cannot be written: {why}"));
    let mut file = File::options().append(true).open(path).map_err(&cannot)?;
    Ok(move |more: &[u8]| file.write_all(more).map_err(&cannot))
}

/// A view of records.
struct OfRecords<F>(F);

impl<F: FnMut(&dyn RunRecord) -> Result<()> + Send> RunView for OfRecords<F> {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Record(record) = event { (self.0)(*record) } else { Ok(()) }
    }
}

/// Makes a view of records from a function.
pub fn of_records(see: impl FnMut(&dyn RunRecord) -> Result<()> + Send + 'static) -> impl RunView {
    OfRecords(see)
}
