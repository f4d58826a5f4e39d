//! Checks during a run that ranks which hold the same elements of a parameter hold the same values.
//!
//! Every checkpoint is saved after a check, so the last checkpoint is one that passed it.
use super::run::TrainRun;
use comm::Mesh;
use parallel::copies::Copies;
use parallel::dtype::RunDevice;
use parallel::{Result, Trainer};

impl TrainRun<'_> {
    /// Compares the copies after this number of steps, if a check is due or `now`; `known` keeps the blocks
    /// that several ranks hold from the first check on. Returns the difference in words, the same on all
    /// ranks.
    pub(super) fn compare<D: RunDevice>(
        &self,
        (trainer, mesh): (&mut Trainer<D>, &Mesh<D::Place>),
        (step, now): (usize, bool),
        (known, note): (&mut Option<Copies>, &dyn Fn(&str)),
    ) -> Result<Option<String>> {
        #[cfg(feature = "faults")]
        planted::plant(trainer, mesh, (self.settings.seed, step));
        if !self.check_every.is_some_and(|every| now || step.is_multiple_of(every)) {
            return Ok(None);
        }
        let _span = mesh.span("check");
        let params = trainer.model().params();
        let is_first = known.is_none();
        let copies = if let Some(copies) = known.take() { copies } else { Copies::of(&params, mesh)? };
        if is_first && copies.is_empty() && mesh.rank() == 0 {
            note(&format!(
                "note: --check-every has nothing to compare: under {} no two ranks hold the same elements",
                self.layout
            ));
        }
        let found = known.insert(copies).difference(&params, mesh)?;
        Ok(found.map(|found| format!("after step {step}, {found}")))
    }
}

#[cfg(feature = "faults")]
mod planted;
