//! Results on standard output: tables for people, JSON for scripts.
pub(crate) use draw::table::table;

use super::out::{self, line, note, plain};
use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Row, Table};
use models::generate::Generated;
use models::tokenizer::Tokenizer;
use parallel::measure::PeakBytes;
use parallel::{Result, measure};
use serde::Serialize;
use tensor::{Scalar, readable};

/// Prints one object on one line.
pub(crate) fn json(value: &impl Serialize) {
    plain(&serde_json::to_string(value).expect("plain values"));
}

/// Prints one value: JSON for scripts, or words for people.
pub(crate) fn one(json: bool, value: &impl Serialize, words: impl FnOnce() -> String) {
    if json { self::json(value) } else { line(&words()) }
}

/// Prints several values: a line of JSON each for scripts, or the text of `people`.
pub(crate) fn all<T: Serialize>(json: bool, values: &[T], people: impl FnOnce()) {
    if json { values.iter().for_each(self::json) } else { people() }
}

/// Room that the other columns of a table leave to the first in a terminal of so many columns.
fn room(table: &Table, columns: usize) -> usize {
    const PADDING: usize = 2; // of a column
    let others = table.column_max_content_widths().into_iter().skip(1);
    let others: usize = others.map(|width| PADDING + usize::from(width)).sum();
    columns.saturating_sub(others + PADDING)
}

/// Fits a table to the terminal width, if the other columns leave room for the head of the first.
pub(crate) fn fitted_if_wide(table: Table) -> Table {
    let room = room(&table, out::terminal().1);
    let head = table.header().and_then(|head| Some(head.cell_iter().next()?.content()));
    let fits = head.is_none_or(|head| head.lines().all(|line| line.chars().count() <= room));
    if fits { fitted(table) } else { table }
}

/// Fits a table to the terminal width by wrapping its first column: between words, or after their commas.
pub(crate) fn fitted(mut table: Table) -> Table {
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

pub(crate) fn texts<E: Scalar>(generated: &Generated<E>, tokenizer: Option<&Tokenizer>) -> Result<()> {
    for t in &generated.texts {
        match tokenizer {
            Some(tokenizer) => plain(&tokenizer.decode(&t.ids)?),
            None => line(&t.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        }
    }
    let ms = |what, seconds: Option<f64>| {
        seconds.map(|s| format!(", {what} {:.2} ms", 1e3 * s)).unwrap_or_default()
    };
    let latency = generated.latency();
    let held: Vec<_> = PeakBytes::of(&generated.taken).total.iter().map(|n| readable(*n as u128)).collect();
    note(&format!(
        "{} new tokens in {:.2} s, {:.0} token/s{}{}; peak of each rank: {}",
        generated.new_tokens(),
        measure::seconds(&generated.taken),
        generated.tokens_per_second(),
        ms("first token after", latency.first_token_seconds),
        ms("then one every", latency.token_seconds),
        held.join(", ")
    ));
    Ok(())
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
