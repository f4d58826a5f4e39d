//! JSON: one object a line on standard output.
use super::{RunView, of_kind};
use crate::cli::out;

/// Shows records of this kind.
pub fn view(kind: &'static str) -> impl RunView {
    of_kind(kind, |record| {
        out::line(&record.json());
        Ok(())
    })
}
