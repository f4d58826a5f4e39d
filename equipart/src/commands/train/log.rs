//! Log of a run: `log.jsonl` in the folder of its checkpoints, one [`StepLine`] a line. Rank 0 writes it.
use crate::draw::curves::{self, Quantity};
use parallel::{Error, Result};
use run::train::StepLine;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::files;

/// Name of the file.
pub(crate) const LOG: &str = "log.jsonl";

/// The steps of a run, and the file that they are appended to, if there is one.
#[derive(Default)]
pub(crate) struct TrainLog {
    /// All steps, also those before a resume.
    lines: Vec<StepLine>,
    file: Option<(PathBuf, File)>,
}

impl TrainLog {
    /// Begins the log in the folder `out`. A run that continues after `done` steps of the folder `resume`
    /// keeps the lines of these steps. Later ones, and an incomplete last line, are dropped.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(crate) fn begin(out: Option<&Path>, resume: Option<(&Path, usize)>) -> Result<Self> {
        let (mut kept, mut lines) = (String::new(), Vec::new());
        if let Some((dir, done)) = resume {
            let path = dir.join(LOG);
            // not by tensor::files: the other ranks do not read this file
            let old = fs::read(&path).or_else(|why| match why.kind() {
                ErrorKind::NotFound => Ok(Vec::new()),
                _ => Err(Error::new(format!("{} cannot be read: {why}", path.display()))),
            })?;
            for text in String::from_utf8_lossy(&old).lines() {
                let line = serde_json::from_str(text).ok().filter(|line: &StepLine| line.step <= done);
                kept.extend(line.iter().flat_map(|_| [text, "\n"]));
                lines.extend(line);
            }
        }
        let open = |dir: &Path| {
            let path = dir.join(LOG);
            files::replace_file(&path, kept.as_bytes())?;
            let file = File::options().append(true).open(&path).map_err(|why| unwritable(&path, &why))?;
            Ok::<_, Error>((path, file))
        };
        Ok(Self { lines, file: out.map(open).transpose()? })
    }
    /// Appends a step.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn add(&mut self, line: &StepLine) -> Result<()> {
        self.lines.push(line.clone());
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let text = serde_json::to_string(line).map_err(|why| Error::new(why.to_string()))? + "\n";
        file.write_all(text.as_bytes()).map_err(|why| unwritable(path, &why))
    }
    /// Returns the seconds of some steps, counted from 0, of `each` tokens or pictures.
    pub(crate) fn seconds(&self, steps: &Range<usize>, each: usize) -> f64 {
        let lines = self.lines.iter().filter(|line| steps.contains(&(line.step - 1)));
        lines.map(|line| each as f64 / line.tokens_per_second).sum()
    }
    /// Draws all steps to a file, as SVG; `name` is the run's.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn draw(self, name: String, file: &Path) -> Result<()> {
        Ok(files::replace_file(file, picture(&[(name, self.lines)]).as_bytes())?)
    }
}

/// A quantity of a step: its title with the unit, its value, and true if its axis begins at 0.
type StepQuantity = (&'static str, fn(&StepLine) -> Option<f64>, bool);

const QUANTITIES: [StepQuantity; 6] = [
    ("loss, nats", |line| Some(line.loss), false),
    ("held-out text, bits a byte", |line| line.held_out_bits_per_byte, false),
    ("test accuracy, %", |line| line.accuracy.map(|right| 100.0 * right), false),
    ("learning rate", |line| Some(line.lr), true),
    ("loss scale", |line| line.loss_scale, true),
    ("speed, tokens a second", |line| Some(line.tokens_per_second), true),
];

/// Draws the steps of runs, each with its name, as the text of an SVG file.
pub(crate) fn picture(runs: &[(String, Vec<StepLine>)]) -> String {
    let of = |(title, value, from_0): StepQuantity| {
        let run = |(_, lines): &(String, Vec<StepLine>)| {
            lines.iter().filter_map(|line| Some((line.step, value(line)?))).collect()
        };
        Quantity { title, from_0, runs: runs.iter().map(run).collect() }
    };
    let names: Vec<_> = runs.iter().map(|(name, _)| name.clone()).collect();
    curves::draw("training", (&names, "steps"), &QUANTITIES.map(of), &[])
}

fn unwritable(path: &Path, why: &std::io::Error) -> Error {
    Error::new(format!("{} cannot be written: {why}", path.display()))
}
