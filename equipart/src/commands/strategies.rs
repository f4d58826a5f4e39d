//! `strategies`: lists the strategies, and the optimizers whose state they split.
use crate::cli::run::Run;
use crate::terminal::{out, show};
use clap::Args;
use comfy_table::{CellAlignment, ColumnConstraint};
use layers::{OptimizerInfo, OptimizerKind, StateInfo};
use ops::OPTIMIZERS;
use parallel::layout::entry::StrategyEntry;
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

impl Run for StrategiesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, json: bool) -> parallel::Result<bool> {
        let entries = StrategyEntry::all();
        let optimizers: Vec<_> = OPTIMIZERS.iter().map(|info| OptimizerEntry::new(info)).collect();
        show::all(json, &entries, || {
            let row = |e: &StrategyEntry| {
                vec![e.layout.clone(), e.name.clone(), e.shards.join(", "), e.fits.clone()]
            };
            let head = ["layout", "strategy", "sharded over its ranks", "its ranks divide"];
            let mut table = show::fitted(show::table(&head, entries.iter().map(row)));
            for column in table.column_iter_mut() {
                column.set_cell_alignment(CellAlignment::Left);
                column.remove_constraint();
            }
            if let Some(layouts) = table.column_mut(0) {
                layouts.set_constraint(ColumnConstraint::ContentWidth);
            }
            out::line(&table.to_string());
            out::line(
                "\nStrategies of experts need a model with experts: --model moe. --json has papers and chapters.\n",
            );
        });
        show::all(json, &optimizers, || {
            let row = |of: &OptimizerEntry| vec![of.optimizer.into(), of.rule.into(), of.keeps.clone()];
            let head = ["--optimizer", "rule", "keeps for each parameter, like it, in the wide dtype"];
            let mut table = show::table(&head, optimizers.iter().map(row));
            table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Left));
            out::line(&table.to_string());
        });
        Ok(true)
    }
}
