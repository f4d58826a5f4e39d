//! The log of a run in the folder of its checkpoints: steps before a resume, and what runs come to.
use super::run::StepLine;
use crate::event::{CellValue, RecordColumn, RunRecord, column};
use crate::words::speed;
use parallel::measure::median;
use parallel::{Error, Result, bail};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use tensor::files;
use tensor::quoted::of_line;

/// Name of the file: a step a line, as JSON.
pub const LOG: &str = "log.jsonl";

/// The steps before.
#[derive(Default)]
pub struct EarlierSteps(pub Vec<StepLine>);

impl EarlierSteps {
    /// Reads the first `done` steps of the log in a folder, if there is one. Later ones, and an incomplete
    /// last line, are dropped.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(dir: &Path, done: usize) -> Result<Self> {
        let old = match files::read_alone(&dir.join(LOG)) {
            Err(files::Error::Missing(_)) => Vec::new(),
            old => old?,
        };
        let text = String::from_utf8_lossy(&old);
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(Self(lines.filter(|line: &StepLine| line.step <= done).collect()))
    }
    /// Returns the seconds of some steps, counted from 0, of `each` tokens or pictures.
    pub fn seconds(&self, steps: &Range<usize>, each: usize) -> f64 {
        let lines = self.0.iter().filter(|line| steps.contains(&(line.step - 1)));
        lines.map(|line| each as f64 / line.tokens_per_second).sum()
    }
}

/// Reads the log of a run: a folder, or the file itself. Of a run that goes on or was killed, the last line
/// may be torn; it is dropped. Returns its name and its steps.
///
/// # Errors
/// If the file cannot be read, or is no log.
pub fn read(run: &Path) -> Result<(String, Vec<StepLine>)> {
    let path = if run.is_dir() { run.join(LOG) } else { run.to_owned() };
    let (bytes, file) = (files::read(&path)?, path.display());
    let text = String::from_utf8_lossy(&bytes);
    let text = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let line = |(text, number): (&str, usize)| {
        serde_json::from_str(text).map_err(|why| {
            Error::new(format!("{file}, line {number} is not the log of a step: {}", of_line(&why)))
        })
    };
    let lines: Vec<StepLine> = text.lines().zip(1..).map(line).collect::<Result<_>>()?;
    if lines.is_empty() {
        bail!("{file} has no steps");
    }
    Ok((run.display().to_string(), lines))
}

/// Summary of a run.
#[derive(Serialize)]
pub struct RunSummary {
    run: String,
    steps: usize,
    /// Loss of the last step, in nats a token.
    last_loss: f64,
    /// Least bits a byte on the held-out text.
    best_held_out_bits_per_byte: Option<f64>,
    /// Largest fraction of test pictures that are right.
    best_accuracy: Option<f64>,
    /// Median of the steps.
    tokens_per_second: f64,
}

impl RunSummary {
    /// Sums up the steps of a run with this name; `None` if there are none.
    pub fn new((name, lines): &(String, Vec<StepLine>)) -> Option<Self> {
        let last = lines.last()?;
        let speeds = lines.iter().map(|line| line.tokens_per_second).collect();
        Some(Self {
            run: name.clone(),
            steps: last.step,
            last_loss: last.loss,
            best_held_out_bits_per_byte: lines
                .iter()
                .filter_map(|l| l.held_out_bits_per_byte)
                .reduce(f64::min),
            best_accuracy: lines.iter().filter_map(|line| line.accuracy).reduce(f64::max),
            tokens_per_second: median(speeds)?,
        })
    }
}

impl RunRecord for RunSummary {
    fn kind(&self) -> &'static str {
        "run"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let right =
            self.best_accuracy.map(|right| CellValue::Shown(right, format!("{:.2} % right", 100.0 * right)));
        let held_out = self.best_held_out_bits_per_byte;
        let held_out = held_out.map(|bits| CellValue::Shown(bits, format!("{bits:.4} bits a byte")));
        vec![
            (column("run", "run"), CellValue::word(&self.run)),
            (column("steps", "steps"), CellValue::Count(self.steps)),
            (
                column("last_loss", "last loss"),
                CellValue::Shown(self.last_loss, format!("{:.4}", self.last_loss)),
            ),
            (column("best_held_out", "best held-out"), held_out.or(right).unwrap_or(CellValue::None)),
            (
                column("tokens_per_second", "token/s"),
                CellValue::Shown(self.tokens_per_second, speed(self.tokens_per_second)),
            ),
        ]
    }
}
