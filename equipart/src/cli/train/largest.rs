//! `--batch-size auto` and `--microbatches auto`: the largest batch that memory holds.
use super::TrainArgs;
use super::auto::Amount;
use crate::cli::args;
use parallel::price::largest::{LargestBatch, Unknown};
use parallel::{Result, bail};

/// Returns the name of the flag that gives this number.
pub(crate) fn flag(unknown: Unknown) -> &'static str {
    if unknown == Unknown::BatchSize { "batch-size" } else { "microbatches" }
}

impl TrainArgs {
    /// Takes the number of microbatches from the layout's table, if it has one.
    ///
    /// # Errors
    /// If the flag gives another one.
    pub(crate) fn take_microbatches(&mut self) -> Result<()> {
        let given = self.microbatches.and_then(Amount::number);
        let number = args::microbatches(&self.layout(), given)?;
        self.microbatches = number.map(Amount::Number).or(self.microbatches);
        Ok(())
    }
    /// Takes the sizes of a step that memory has decided.
    pub(crate) fn take(&mut self, found: &LargestBatch) {
        let [batch_size, microbatches] = [found.batch_size, found.microbatches].map(Amount::Number);
        (self.batch_size, self.microbatches) = (Some(batch_size), Some(microbatches));
    }
    /// Returns the number of a step that memory decides, if a flag is auto.
    ///
    /// # Errors
    /// If both flags are auto, or a table has the number.
    pub(crate) fn unknown(&self) -> Result<Option<Unknown>> {
        let autos = [self.batch_size, self.microbatches].map(|amount| amount == Some(Amount::Auto));
        match (autos, self.layout().table()) {
            ([true, true], _) => bail!("--batch-size and --microbatches are both auto; give one a number"),
            ([_, true], Some(_)) => {
                bail!("--microbatches is auto, but the table of --schedule has the number; leave it out")
            }
            ([true, _], _) => Ok(Some(Unknown::BatchSize)),
            ([_, true], _) => Ok(Some(Unknown::Microbatches)),
            _ => Ok(None),
        }
    }
}
