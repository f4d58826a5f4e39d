//! The log of a run in the folder of its checkpoints: one record a line, as JSON.
use super::view::{RunView, record_file};
use parallel::Result;
use std::path::Path;

/// Name of the file.
pub(crate) const LOG: &str = "log.jsonl";

/// Opens the log of steps in a folder.
///
/// # Errors
/// If the file cannot be written.
pub fn view(dir: &Path) -> Result<impl RunView + use<>> {
    record_file(&dir.join(LOG), move |record| {
        if record.is_step() { (record.json() + "\n").into_bytes() } else { Vec::new() }
    })
}
