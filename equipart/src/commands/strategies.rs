//! `strategies`: lists the strategies.
use super::Run;
use crate::cli::{out, show};
use clap::Args;
use comfy_table::{CellAlignment, ColumnConstraint};
use parallel::layout::StrategyEntry;

/// List the strategies that a layout can name
#[derive(Args, Debug)]
pub(crate) struct StrategiesArgs {}

impl Run for StrategiesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, json: bool) -> parallel::Result<bool> {
        let entries = StrategyEntry::all();
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
                "\nStrategies of experts need a model with experts: --model moe. --json has papers and chapters.",
            );
        });
        Ok(true)
    }
}
