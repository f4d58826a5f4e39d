//! `plot`: tables and curves of the logs of training runs.
use crate::cli::files;
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::plot::{Points, picture};
use crate::views::view::RECORDS;
use clap::Args;
use parallel::Result;
use run::train::log::{RunSummary, read};
use std::path::PathBuf;

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

impl Run for PlotArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let runs: Vec<_> = self.runs.iter().map(|run| read(run)).collect::<Result<_>>()?;
        let rows: Vec<_> = runs.iter().filter_map(RunSummary::new).collect();
        let draw = || {
            let points: Vec<_> = runs.iter().map(|(name, lines)| Points::of(name.clone(), lines)).collect();
            picture("training", &points, "steps")
        };
        files::picture(self.svg.as_ref(), "Losses, learning rates and speeds.", views, draw)?;
        views.rows(&rows)?;
        if let Some(file) = &self.svg {
            views.say(&format!("\nthe curves are in {}", file.display()))?;
        }
        Ok(true)
    }
}
