//! The log of a run in the folder of its checkpoints: one record a line, as JSON.
use super::view::{RunView, appended, of_records};
use parallel::Result;
use std::path::Path;

/// Name of the file.
pub(crate) const LOG: &str = "log.jsonl";

/// Opens the log of records of one kind in a folder; it begins with the lines `kept`, of an earlier run.
///
/// # Errors
/// If the file cannot be written.
pub fn view(kind: &'static str, dir: &Path, kept: &str) -> Result<impl RunView + use<>> {
    let mut append = appended(&dir.join(LOG), kept.as_bytes())?;
    Ok(of_records(
        move |record| {
            if record.kind() == kind { append((record.json() + "\n").as_bytes()) } else { Ok(()) }
        },
    ))
}
