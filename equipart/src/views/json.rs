//! JSON: one object a line on standard output.
use super::view::RunView;
use crate::terminal::out;
use parallel::Result;
use run::event::RunEvent;

/// A view that shows records.
pub struct JsonLines;

impl RunView for JsonLines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Record(record) = event
            && !record.is_detail()
        {
            out::plain(&record.json());
        }
        Ok(())
    }
}
