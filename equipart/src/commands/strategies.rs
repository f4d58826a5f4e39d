//! `strategies`: lists the strategies, and the optimizers whose state they split.
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use layers::{OptimizerInfo, OptimizerKind, StateInfo};
use ops::OPTIMIZERS;
use parallel::layout::entry::StrategyEntry;
use run::records;
use serde::Serialize;

/// List the strategies that a layout can name, and the optimizers
#[derive(Args, Debug)]
pub(crate) struct StrategiesArgs {}

/// An optimizer, and what it keeps.
#[derive(Serialize)]
struct OptimizerEntry {
    optimizer: &'static str,
    rule: &'static str,
    keeps: String,
    paper: &'static str,
}

impl OptimizerEntry {
    fn new(info: &'static OptimizerInfo) -> Self {
        let words = |states: &[StateInfo]| match states {
            [] => "nothing".into(),
            all => all.iter().map(|state| state.name).collect::<Vec<_>>().join(", "),
        };
        let others = words(OptimizerKind::usual(info).states().others);
        let keeps = match info.matrices {
            Some(matrices) => format!("{} for matrices of blocks; {others} for others", words(matrices)),
            None => others,
        };
        Self { optimizer: info.name, rule: info.title, keeps, paper: info.paper }
    }
}

records!(OptimizerEntry: "optimizer");

impl Run for StrategiesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, views: &Views) -> parallel::Result<bool> {
        let entries = StrategyEntry::all();
        views.records(&entries)?;
        let row =
            |e: &StrategyEntry| vec![e.layout.clone(), e.name.clone(), e.shards.join(", "), e.fits.clone()];
        let head = ["layout", "strategy", "sharded over its ranks", "its ranks divide"];
        views.text_table(&head, entries.iter().map(row))?;
        views.say(
            "\nStrategies of experts need a model with experts: --model moe. --json has papers and chapters.\n",
        )?;
        let optimizers: Vec<_> = OPTIMIZERS.iter().map(|info| OptimizerEntry::new(info)).collect();
        views.records(&optimizers)?;
        let row = |of: &OptimizerEntry| vec![of.optimizer.into(), of.rule.into(), of.keeps.clone()];
        let head = ["--optimizer", "rule", "keeps for each parameter, like it, in the wide dtype"];
        views.text_table(&head, optimizers.iter().map(row))?;
        Ok(true)
    }
}
