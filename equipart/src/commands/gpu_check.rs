//! `gpu-check`: checks that a GPU computes the same as the host, and measures its speed: every kernel,
//! layouts on one card, products beside NVIDIA's library, a model at work. It needs the program and nothing
//! else.
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::{Args, ValueEnum};
use cuda::{Card, CardProperties};
use parallel::{Error, Result};
use run::card::{CheckRow, figures, kernels, layouts};
use run::records;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Compare every kernel of a GPU with the host, check layouts on it, and measure its speed
#[derive(Args, Debug)]
pub(crate) struct GpuCheckArgs {
    /// File of the report, as JSON
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    pub(crate) out: PathBuf,
    /// Run only this part; may be repeated
    #[arg(long, value_name = "PART", value_enum)]
    pub(crate) only: Vec<CheckPart>,
    /// Measure small sizes, to test that all figures run
    #[arg(long)]
    pub(crate) small: bool,
}

/// Report of all checks.
#[derive(Debug, Serialize)]
struct CheckReport {
    card: String,
    cuda: String,
    seconds: f64,
    lines: Vec<CheckRow>,
}

/// Part of the checks; the doc of each variant is its help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckPart {
    /// every kernel, compared with the host's
    Kernels,
    /// layouts with all ranks on the card, compared with one rank
    Layouts,
    /// the speed of kernels, and of a model
    Figures,
}

records!(CheckReport: "card");

impl Run for GpuCheckArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let begin = Instant::now();
        let card = Card::open(0).map_err(|error| Error::new(error.to_string()))?;
        let asked = |part| a.only.is_empty() || a.only.contains(&part);
        let mut lines = Vec::new();
        if asked(CheckPart::Kernels) {
            lines.extend(kernels(&card, views));
        }
        if asked(CheckPart::Layouts) {
            views.doing("comparing layouts")?;
            lines.extend(layouts()?);
        }
        let right = lines.iter().all(|line| line.well == Some(true));
        if asked(CheckPart::Figures) {
            lines.extend(figures(&card, a.small, views)?);
        }
        let CardProperties { name, cuda: (major, minor), .. } = &card.about;
        let cuda = format!("{major}.{minor}");
        let report = CheckReport { card: name.clone(), cuda, seconds: begin.elapsed().as_secs_f64(), lines };
        let text = serde_json::to_string_pretty(&report).expect("strings and numbers");
        tensor::files::replace_file(&a.out, text.as_bytes())?;
        views.record(&report)?;
        let CheckReport { card, cuda, seconds, lines } = &report;
        views.table_of(lines)?;
        views.say(&format!("{card}, CUDA {cuda}, {seconds:.0} s; also in {}", a.out.display()))?;
        Ok(right)
    }
}
