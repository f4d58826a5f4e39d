//! Values of flags that may be `auto`.
use parallel::Layout;
use std::fmt;
use std::str::FromStr;

/// A number, or auto: the number that memory decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// The number that memory decides.
    Auto,
    /// A number.
    Number(usize),
}

impl Amount {
    /// Returns the number, if it is one.
    pub(crate) fn number(self) -> Option<usize> {
        if let Self::Number(n) = self { Some(n) } else { None }
    }
}

impl FromStr for Amount {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Number)
            .map_err(|_| format!("{text:?} is not a number of 1 or more; write one, or auto"))
    }
}

/// A layout, or auto: the planner's, for as many ranks as there are processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayoutFlag {
    /// The planner's layout.
    Auto,
    /// A layout.
    Layout(Layout),
}

impl TrainArgs {
    /// Takes the number of microbatches from the layout's table, if it has one.
    ///
    /// # Errors
    /// If the flag gives another one.
    pub(crate) fn take_microbatches(&mut self) -> Result<()> {
        let number = args::microbatches(&self.layout(), self.microbatches.and_then(Amount::number))?;
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
