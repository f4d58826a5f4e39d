//! JSON: one object a line on standard output.
use super::view::{RunView, of_records};
use crate::cli::out;

/// Shows records, but for those of one kind.
pub fn view(without: &'static str) -> impl RunView {
    of_records(move |record| {
        if record.kind() != without {
            out::plain(&record.json());
        }
        Ok(())
    })
}
