//! The command that shows the list of strategies.
use crate::cli::{out, show};
use comfy_table::CellAlignment;
use parallel::layout::StrategyEntry;

/// Shows the list: nothing is compared, so nothing differs.
pub(crate) fn run(json: bool) -> bool {
    let entries = StrategyEntry::all();
    show::all(json, &entries, || {
        let row = |e: &StrategyEntry| {
            vec![e.key.clone(), e.name.clone(), e.shards.join(", "), e.fits.clone(), e.paper.clone()]
        };
        let head = ["layout", "strategy", "what each rank has its part of", "its ranks share", "source"];
        let mut table = show::table(&head, entries.iter().map(row));
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Left));
        out::line(&table.to_string());
    });
    true
}
