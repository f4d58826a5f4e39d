//! The log of a run in the folder of its checkpoints: one record a line, as JSON.
use super::{RunView, of_kind};
use parallel::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use tensor::files;

/// Name of the file.
pub(crate) const LOG: &str = "log.jsonl";

/// Opens the log in a folder; it begins with the lines `kept`, of an earlier run.
///
/// # Errors
/// If the file cannot be written.
pub fn view(kind: &'static str, dir: &Path, kept: &str) -> Result<impl RunView + use<>> {
    let path = dir.join(LOG);
    files::replace_file(&path, kept.as_bytes())?;
    let name = path.display().to_string();
    let cannot = move |why: std::io::Error| Error::new(format!("{name} cannot be written: {why}"));
    let mut file = File::options().append(true).open(&path).map_err(&cannot)?;
    Ok(of_kind(kind, move |record| file.write_all((record.json() + "\n").as_bytes()).map_err(&cannot)))
}
