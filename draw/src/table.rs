//! Tables of words.
use comfy_table::{CellAlignment, Table, presets};

/// Makes a table without lines; all columns but the first are aligned to the right.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.iter().copied()).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
