//! Steps before a resume, from the log of the run.
use crate::views::log::LOG;
use parallel::Result;
use run::train::StepLine;
use std::ops::Range;
use std::path::Path;
use tensor::files;

/// The steps before.
#[derive(Default)]
pub(crate) struct EarlierSteps(pub(crate) Vec<StepLine>);

impl EarlierSteps {
    /// Reads the first `done` steps of the log in a folder, if there is one. Later ones, and an incomplete
    /// last line, are dropped.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn read(dir: &Path, done: usize) -> Result<Self> {
        let old = match files::read_alone(&dir.join(LOG)) {
            Err(files::Error::Missing(_)) => Vec::new(),
            old => old?,
        };
        let text = String::from_utf8_lossy(&old);
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(Self(lines.filter(|line: &StepLine| line.step <= done).collect()))
    }
    /// Returns the seconds of some steps, counted from 0, of `each` tokens or pictures.
    pub(crate) fn seconds(&self, steps: &Range<usize>, each: usize) -> f64 {
        let lines = self.0.iter().filter(|line| steps.contains(&(line.step - 1)));
        lines.map(|line| each as f64 / line.tokens_per_second).sum()
    }
}
