//! The log of a run in the folder of its checkpoints: one record a line, as JSON.
use super::view::{RunView, record_file};
use parallel::Result;
use std::path::Path;

/// Opens the log of steps in a file.
///
/// # Errors
/// If the file cannot be written.
pub fn view(file: &Path) -> Result<impl RunView + use<>> {
    record_file(
        file,
        move |record| {
            if record.is_step() { (record.json() + "\n").into_bytes() } else { Vec::new() }
        },
    )
}
