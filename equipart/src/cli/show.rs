//! Results on standard output: tables for people, JSON for scripts.
use super::out::{self, line, note};
use crate::commands::compare::{LayoutRow, Workload};
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets};
use comm::readable;
use layers::counted;
use models::generate::Generated;
use models::tokenizer::Tokenizer;
use parallel::dtype::DtypeName;
use parallel::measure::PeakBytes;
use parallel::{Result, measure};
use serde::Serialize;
use std::collections::BTreeSet;
use tensor::Scalar;

/// Prints one object on one line.
pub(crate) fn json(value: &impl Serialize) {
    line(&serde_json::to_string(value).expect("plain values"));
}

/// Prints one value: JSON for scripts, or words for people.
pub(crate) fn one(json: bool, value: &impl Serialize, words: impl FnOnce() -> String) {
    if json { self::json(value) } else { line(&words()) }
}

/// Prints several values: a line of JSON each for scripts, or the text of `people`.
pub(crate) fn all<T: Serialize>(json: bool, values: &[T], people: impl FnOnce()) {
    if json { values.iter().for_each(self::json) } else { people() }
}

pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.iter().copied()).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Fits a table to the terminal width by wrapping its first column: between words, or after their commas.
pub(crate) fn fitted(mut table: Table) -> Table {
    const PADDING: usize = 2; // of a column
    let columns = out::terminal().1.min(1000) as u16;
    let others = table.column_max_content_widths().into_iter().skip(1);
    let others: usize = others.map(|width| PADDING + usize::from(width)).sum();
    let room = usize::from(columns).saturating_sub(others + PADDING);
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

pub(crate) fn comparison(origin: &str, number: DtypeName, rows: &[LayoutRow]) {
    let step = rows.iter().find_map(|row| row.microbatches).map(|n| counted(n, "microbatch"));
    let step = step.map_or_else(String::new, |n| format!("\nA training step has {n}."));
    line(&format!("The model is {origin}, the run in {number}.{step}"));
    let is_narrow = number.stored().bitsize() == 16;
    let other = if is_narrow { DtypeName::F32 } else { DtypeName::Bf16 };
    for (workload, title, per) in [
        (Workload::Inference, "Generating text", "a token"),
        (Workload::Training, "One training step", "a step"),
    ] {
        let of_this = || rows.iter().filter(|r| r.workload == workload);
        let text = workload == Workload::Inference;
        let in_other = format!("in {other}");
        let (sent, tokens_equal) = (format!("sent\n{per}"), if text { &["tokens"][..] } else { &[] });
        let unit = of_this().next().map_or("token/s", |row| row.rate.unit());
        let head = [&[title, unit, "holds", &in_other, &sent, "field"], tokens_equal, &["error"]].concat();
        let cells = |r: &LayoutRow| {
            let mut row = vec![
                r.name.clone(),
                speed_of(r),
                readable(r.most_bytes() as u128),
                readable(r.peak_bytes_by_number[other.name()] as u128),
                readable(r.traffic_bytes as u128),
                (if r.equal { "equal" } else { "DIFFERENT" }).into(),
            ];
            row.extend(text.then(|| tokens(r)));
            row.push(format!("x{:.2}", r.error_ratio));
            row
        };
        if of_this().next().is_some() {
            line(&format!("\n{}", fitted(table(&head, of_this().map(cells)))));
        }
    }
    for words in dominating(rows).into_iter().chain(unsteady(rows.iter().filter_map(|row| row.spread))) {
        line(&words);
    }
    for row in rows.iter().filter(|r| r.workload == Workload::Inference) {
        if let Some(t) = &row.tie {
            line(&format!(
                "{}: text {} differs from token {} on, a tie within rounding (margin {:.1e}, bound {:.1e}).",
                row.name, t.sequence, t.token, t.margin, t.bound
            ));
        }
        if let Some(note) = &row.note {
            line(&format!("{}: {note}.", row.name));
        }
    }
    for text in FOOTNOTES {
        line(&text.replace("token/s", rows.first().map_or("token/s", |row| row.rate.unit())));
    }
    if number == DtypeName::F64 {
        line("In f64 the unsplit run's error is 0; there the unit is one rounding of the largest value.");
    }
    let never: BTreeSet<_> = rows.iter().flat_map(|row| &row.never_ran).collect();
    if !never.is_empty() {
        line(&format!(
            "This covers this model and this work only: {} of other models and steps did not run here\n\
             (--json lists them); `equipart prove` without a model proves them, on small models.",
            counted(never.len(), "feature")
        ));
    }
}

/// Tokens or pictures a second, and the spread of the runs: `17.0k ±3 %`.
fn speed_of(row: &LayoutRow) -> String {
    let speed = run::words::speed(row.rate.number());
    row.spread.map_or(speed.clone(), |part| format!("{speed} ±{:.0} %", 100.0 * part))
}

/// One line for each row that holds at most 0.6 of the unsplit model's memory on a rank, holds less than
/// `standard`, and is faster than `standard`.
fn dominating(rows: &[LayoutRow]) -> Vec<String> {
    let named = |name| rows.iter().find(|row| row.name == name);
    let (Some(unsplit), Some(standard)) = (named("unsplit"), named("standard")) else { return Vec::new() };
    let beats = |row: &&LayoutRow| {
        row.most_bytes() <= 0.6 * unsplit.most_bytes()
            && row.most_bytes() < standard.most_bytes()
            && row.is_faster(standard)
    };
    let words = |row: &LayoutRow| {
        format!(
            "{} dominates standard: {:.2} of the unsplit model's memory ({:.2} of standard's), x{:.2} of standard's tokens.",
            row.name,
            row.most_bytes() / unsplit.most_bytes(),
            row.most_bytes() / standard.most_bytes(),
            row.rate.number() / standard.rate.number()
        )
    };
    rows.iter().filter(beats).map(words).collect()
}

/// Spread from which on a comparison's speeds are doubted.
const UNSTEADY: f64 = 0.25;

/// Warns of speeds that differ much from run to run, as they do where other programs use the cores.
fn unsteady(spreads: impl Iterator<Item = f64>) -> Option<String> {
    let most = spreads.fold(0.0, f64::max);
    let words = || {
        let part = 100.0 * most;
        format!(
            "Speeds differ by ±{part:.0} % from run to run: other programs use the cores; compare on idle ones."
        )
    };
    (most > UNSTEADY).then(words)
}

/// Footnotes that explain the columns of a comparison.
const FOOTNOTES: [&str; 7] = [
    "\ntoken/s: median of the runs, ± half of their interquartile range; rows whose ± overlap are equally",
    "fast. holds: peak of the fullest rank; in another dtype, as priced. sent: by all ranks. field: the",
    "same work in the field of 2^61 - 1, where nothing rounds, equals the unsplit oracle bit for bit: in",
    "generation the logits that choose each token, read with a cache, one token at a time; in training",
    "the loss, the norm, gradients and new weights. tokens: as in the unsplit run. error: against f64,",
    "as a multiple of the unsplit run's error (on stale weights, or on fewer, against the same in f64).",
    "--json has exact bytes, seconds, and memory by phase.",
];

fn tokens(row: &LayoutRow) -> String {
    match (row.tokens_equal, &row.tie) {
        (None, _) => "-".into(),
        (Some(true), _) => "equal".into(),
        (Some(false), Some(tie)) => format!("tie at {}", tie.token),
        (Some(false), None) => "DIFFERENT".into(),
    }
}

pub(crate) fn texts<E: Scalar>(generated: &Generated<E>, tokenizer: Option<&Tokenizer>) -> Result<()> {
    for t in &generated.texts {
        match tokenizer {
            Some(tokenizer) => line(&tokenizer.decode(&t.ids)?),
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

    /// Kills: a busy machine whose speeds look as those of an idle one, a warning of an idle one.
    #[test]
    fn speeds_that_differ_from_run_to_run_are_doubted() {
        assert!(unsteady([0.03, 1.51].into_iter()).is_some_and(|words| words.contains("±151 %")));
        assert_eq!(unsteady([0.25, 0.0].into_iter()), None);
    }

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
