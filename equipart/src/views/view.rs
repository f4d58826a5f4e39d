//! A view: what it sees of a run, how it is opened by a flag; and what views that write records share.
use parallel::{Error, Result};
use run::event::{RunEvent, RunRecord};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tensor::files::{Replacement, replace_file, was_opened};

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
    /// True if the view shows tables and pictures that are made for it alone.
    pub wants_details: bool,
    /// Opens the view.
    pub open: fn(&Path, &ViewContext) -> Result<Box<dyn RunView>>,
}

/// The run has results that are rows of one table.
pub const RECORDS: u8 = 1;
/// The run has results over steps.
pub const CURVES: u8 = 2;

/// A file to which a view appends. An older file is replaced when the first text comes or the run ends well:
/// a command that is refused leaves it as it is.
pub struct AppendedFile {
    path: PathBuf,
    /// Text to begin with.
    begin: Vec<u8>,
    file: Option<File>,
}

impl AppendedFile {
    /// Prepares a file at this path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn at(path: &Path) -> Result<Self> {
        drop(Replacement::beside(path)?);
        Ok(Self { path: path.into(), begin: Vec::new(), file: None })
    }
    /// Adds text to the beginning of the file, which is not replaced yet.
    pub fn begin_with(&mut self, text: &[u8]) {
        self.begin.extend(text);
    }
    /// Replaces an older file, if it has not been yet, and appends a text.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&mut self, text: &[u8]) -> Result<()> {
        let name = self.path.display();
        let cannot = |why: std::io::Error| Error::new(format!("{name} cannot be written: {why}"));
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                replace_file(&self.path, &self.begin)?;
                none.insert(File::options().append(true).open(&self.path).map_err(cannot)?)
            }
        };
        file.write_all(text).map_err(cannot)
    }
}

/// A view that appends a text of each record to a file, if it is not empty.
pub struct RecordFile<F> {
    /// The file.
    pub file: AppendedFile,
    /// True if the file begins with the records of the run that this one resumes.
    pub with_earlier: bool,
    /// Makes the text of a record.
    pub text: F,
}

impl<F: FnMut(&dyn RunRecord) -> Vec<u8> + Send> RunView for RecordFile<F> {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        let RunEvent::Record(record) = event else { return Ok(()) };
        let text = (self.text)(*record);
        if text.is_empty() { Ok(()) } else { self.file.append(&text) }
    }
    fn earlier(&mut self, record: &dyn RunRecord) {
        if self.with_earlier {
            self.file.begin_with(&(self.text)(record));
        }
    }
    fn end(&mut self, failure: Option<&str>) -> Result<()> {
        if failure.is_none() { self.file.append(b"") } else { Ok(()) }
    }
}

/// Makes a view that appends to a file what a function makes of each record, also of the run that is resumed.
///
/// # Errors
/// If the file cannot be written.
pub fn record_file<F: FnMut(&dyn RunRecord) -> Vec<u8> + Send + 'static>(
    path: &Path,
    text: F,
) -> Result<impl RunView + use<F>> {
    Ok(RecordFile { file: AppendedFile::at(path)?, with_earlier: true, text })
}

/// Refuses a flag whose file this command has read, though no flag names it.
///
/// # Errors
/// If it has.
pub fn unread(flag: &str, file: &Path) -> Result<()> {
    if was_opened(file) { Err(used(flag, file)) } else { Ok(()) }
}

/// Returns the error of a flag whose file a command uses.
pub fn used(flag: &str, file: &Path) -> Error {
    let shown = file.display();
    Error::new(format!("--{flag} would replace {shown}, which this command uses, too; choose another file"))
}
