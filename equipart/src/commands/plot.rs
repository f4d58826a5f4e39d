//! `plot`: tables and curves of the logs of training runs.
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::log::LOG;
use crate::views::plot::{Points, picture};
use crate::views::view::RECORDS;
use clap::Args;
use parallel::measure::median;
use parallel::{Error, Result, bail};
use run::event::{CellValue, RecordColumn, RunRecord, column};
use run::train::StepLine;
use run::words::speed;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tensor::files;
use tensor::quoted::of_line;

/// Compare the logs of training runs, in a table or as curves
#[derive(Args, Debug)]
pub(crate) struct PlotArgs {
    /// Runs: folders of train --out, or their log.jsonl
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Draw losses, learning rates and speeds over the steps to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Summary of a run.
#[derive(Serialize)]
struct RunSummary {
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
    fn new((name, lines): &(String, Vec<StepLine>)) -> Option<Self> {
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

/// Reads the log of a run: a folder, or the file itself. Of a run that goes on or was killed, the last line
/// may be torn; it is dropped.
fn read(run: &Path) -> Result<(String, Vec<StepLine>)> {
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

impl Run for PlotArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let runs: Vec<_> = self.runs.iter().map(|run| read(run)).collect::<Result<_>>()?;
        let rows: Vec<_> = runs.iter().filter_map(RunSummary::new).collect();
        if let Some(file) = &self.svg {
            let points: Vec<_> = runs.iter().map(|(name, lines)| Points::of(name.clone(), lines)).collect();
            let svg = picture("training", &points, "steps");
            files::replace_file(file, svg.as_bytes())?;
            views.picture("The runs.", &svg)?;
        }
        views.rows(&rows)?;
        if let Some(file) = &self.svg {
            views.say(&format!("\nthe curves are in {}", file.display()))?;
        }
        Ok(true)
    }
}
