//! JSON: one object a line on standard output.
use super::view::RunView;
use crate::terminal::out;
use parallel::Result;
use run::event::RunEvent;

/// A view that shows records, but for those of one kind.
pub struct JsonLines {
    /// The kind that is not shown.
    pub without: &'static str,
}

impl RunView for JsonLines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Record(record) = event
            && record.kind() != self.without
        {
            out::plain(&record.json());
        }
        Ok(())
    }
}
