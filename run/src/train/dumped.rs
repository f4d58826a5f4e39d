//! Activations, gradients and weights of the last step, in files.
use super::run::TrainRun;
use parallel::Result;
use parallel::dump::{self, DumpDtype, Provenance, Recorded};

impl TrainRun<'_> {
    /// Writes what ranks have recorded of the last of so many steps, if a folder is given.
    pub(super) fn write_dump<E: DumpDtype<Wide: DumpDtype>>(
        &self,
        recorded: Vec<Recorded<E>>,
        steps: usize,
    ) -> Result<()> {
        let Some(dir) = &self.dump else { return Ok(()) };
        let layout = self.layout.to_string();
        let about = Provenance { layout, step: Some(steps - 1), ..Provenance::default() };
        dump::write(dir, &self.model.entries(), recorded, &about)
    }
}
