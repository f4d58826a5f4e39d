//! Lines: words and tables for people on standard output, and notes on standard error.
use super::view::RunView;
use crate::terminal::out;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table};
use draw::table::table;
use parallel::Result;
use run::event::RunEvent;

/// A view that prints notes on standard error.
pub struct NoteLines;

impl RunView for NoteLines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Note(words) = event {
            out::note(words);
        }
        Ok(())
    }
}

/// A view that prints words, and tables as wide as the terminal.
pub struct Lines;

impl RunView for Lines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Text(words) => out::line(words),
            RunEvent::Screen(words) => out::plain(words),
            RunEvent::Table { heads, rows, is_text: false } => {
                out::line(&fitted_if_wide(table(heads, rows.iter().cloned())).to_string());
            }
            RunEvent::Table { heads, rows, .. } => {
                let mut table = fitted(table(heads, rows.iter().cloned()));
                for column in table.column_iter_mut() {
                    column.set_cell_alignment(CellAlignment::Left);
                    column.remove_constraint();
                }
                out::line(&table.to_string());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Room that the other columns of a table leave to the first in a terminal of so many columns.
fn room(table: &Table, columns: usize) -> usize {
    const PADDING: usize = 2; // of a column
    let others = table.column_max_content_widths().into_iter().skip(1);
    let others: usize = others.map(|width| PADDING + usize::from(width)).sum();
    columns.saturating_sub(others + PADDING)
}

/// Fits a table to the terminal width, if the other columns leave room for the words of the first.
fn fitted_if_wide(table: Table) -> Table {
    let room = room(&table, out::terminal().1);
    let is_short = |line: &str| line.chars().count() <= room;
    let breaks =
        |cell: String| cell.split([' ', '\n']).flat_map(|word| word.split_inclusive(',')).all(is_short);
    let mut rows = table.row_iter().filter_map(|row| Some(row.cell_iter().next()?.content()));
    let head = table.header().and_then(|head| Some(head.cell_iter().next()?.content()));
    let fits = head.is_none_or(|head| head.lines().all(is_short)) && rows.all(breaks);
    if fits { fitted(table) } else { table }
}

/// Fits a table to the terminal width by wrapping its first column: between words, or after their commas.
fn fitted(mut table: Table) -> Table {
    let columns = out::terminal().1.min(1000) as u16;
    let room = room(&table, usize::from(columns));
    for row in table.row_iter_mut() {
        let mut cells: Vec<_> = row.cell_iter().cloned().collect();
        cells.first_mut().into_iter().for_each(|first| *first = Cell::new(broken(&first.content(), room)));
        *row = Row::from(cells);
    }
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_constraint(ColumnConstraint::ContentWidth);
    });
    table
}

/// Breaks each word of more than `room` characters after commas, into lines that are no longer if its parts
/// are not.
fn broken(text: &str, room: usize) -> String {
    let word = |word: &str| {
        let mut lines = vec![String::new()];
        for part in word.split_inclusive(',') {
            let line = lines.last_mut().expect("there is a first one");
            if line.is_empty() || line.chars().count() + part.chars().count() <= room {
                line.push_str(part);
            } else {
                lines.push(part.to_owned());
            }
        }
        lines.join("\n")
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a word broken in the middle of a layout's part, a comma that is lost, a line that would have
    /// fitted.
    #[test]
    fn long_words_break_after_their_commas() {
        let name = "tp=2,sp,dp=2:zero1,pp=2:dualpipe-v, 8 ranks";
        assert_eq!(broken(name, 40), name);
        assert_eq!(broken(name, 20), "tp=2,sp,dp=2:zero1,\npp=2:dualpipe-v, 8 ranks");
        assert_eq!(broken(name, 5), "tp=2,\nsp,\ndp=2:zero1,\npp=2:dualpipe-v, 8 ranks");
        let rows = [["a", "x"], [name, "y"]].map(|row| row.map(str::to_owned).to_vec());
        let printed = fitted(table(&["layout", "of"], rows.into_iter())).to_string();
        assert!(printed.contains("dualpipe-v, 8 ranks"), "{printed}");
    }
}
