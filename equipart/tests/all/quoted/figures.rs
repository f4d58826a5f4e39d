//! The book's figures of all schedules are what `equipart schedule` says; its tables of prices are what
//! `equipart price` says. Tests write them anew as they do quotes.
use crate::child::equipart;
use parallel::pipeline;
use serde_json::Value;
use std::path::Path;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");
/// How a table of figures begins; the arguments of all its rows follow, and the table after the mark's end.
const FIGURES: &str = "<!-- figures: equipart schedule ";
/// How a table of prices begins: the arguments of all its rows, a colon, and the rows, with semicolons
/// between them. A row is a layout and its own arguments.
const PRICES: &str = "<!-- prices: equipart price";

fn said(line: &str) -> String {
    let output = equipart(&line.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A row for each kind.
fn figures(line: &str) -> String {
    let row = |word: &str| {
        let of: Value =
            serde_json::from_str(&said(&format!("schedule --kind {word} {line} --json"))).unwrap();
        let number = |key: &str| of[key].as_f64().unwrap();
        let peaks =
            of["peak_saved"].as_array().unwrap().iter().map(|peak| peak.as_f64().unwrap().to_string());
        let share = 100.0 * number("bubble_fraction");
        let (step, bubble) = (number("makespan"), number("bubble_time"));
        format!(
            "| `{word}` | {step} | {bubble} | {share:.1} % | {} |\n",
            peaks.collect::<Vec<_>>().join(", ")
        )
    };
    let head = "\n| kind | the step | bubble | its share | saved at most, by rank |\n|---|---|---|---|---|\n";
    let rows: String = pipeline::ALL.iter().map(|schedule| row(schedule.about().word)).collect();
    format!("{head}{rows}\n")
}

/// A row for each layout: bytes and operations of its fullest rank, and the most bytes that a rank sends.
/// Columns of zeros are left out.
fn prices(line: &str) -> String {
    let categories = ["weights", "gradients", "optimizer", "activations", "total"];
    let others = [("off device", "away_bytes"), ("moved", "moved_bytes"), ("GFLOP", "flops")];
    let names = || categories.into_iter().chain(others.map(|(name, _)| name)).chain(["sent"]);
    let (args, rows) = line.split_once(": ").unwrap();
    let row = |row: &str| {
        let json = said(&format!("price {args} --json --layout {row}"));
        let ranks: Vec<Value> = json.lines().map(|rank| serde_json::from_str(rank).unwrap()).collect();
        let total = |rank: &&Value| rank["peak_bytes"]["total"].as_u64();
        let fullest = ranks.iter().max_by_key(total).unwrap();
        let sent = ranks.iter().filter_map(|rank| rank["traffic_bytes"].as_u64()).max();
        let held = categories.map(|category| fullest["peak_bytes"][category].as_u64());
        let others = others.map(|(_, key)| fullest[key].as_u64());
        let all = held.into_iter().chain(others).chain([sent]);
        all.map(|n| n.unwrap_or(0) as f64).collect::<Vec<_>>()
    };
    let rows: Vec<_> = rows.split("; ").map(|of| (of, row(of))).collect();
    let shown = |i: &usize| rows.iter().any(|(_, row)| row[*i] > 0.0);
    let columns: Vec<_> = names().enumerate().filter(|(i, _)| shown(i)).collect();
    let line = |first: &str, cell: &dyn Fn(usize, &str) -> String| {
        let cells = columns.iter().map(|(i, name)| format!(" {} |", cell(*i, name)));
        format!("| {first} |{}\n", cells.collect::<String>())
    };
    let head = line("layout", &|_, name| name.into()) + &line("---", &|_, _| "---".into()).replace(' ', "");
    let number = |n: f64, name: &str| match name {
        _ if n == 0.0 => "0".into(),
        "GFLOP" => format!("{:.2}", n / 1e9),
        _ => format!("{:.2} MB", n / 1e6),
    };
    let rows = rows.iter().map(|(of, row)| line(&format!("`{of}`"), &|i, name| number(row[i], name)));
    let args = if args.is_empty() { String::new() } else { format!(" {}", args.trim()) };
    format!("\n`$ equipart price{args} --layout …`:\n\n{head}{}\n", rows.collect::<String>())
}

/// The page with what `made` says of the rest of each line that begins so, up to where `ends` is; and how
/// many there were.
fn renewed(page: &str, begins: &str, ends: &str, made: impl Fn(&str) -> String) -> (String, usize) {
    let mut parts = page.split(begins);
    let mut new = parts.next().unwrap().to_string();
    let mut n = 0;
    for part in parts {
        let (line, rest) = part.split_once('\n').unwrap();
        let (_, rest) = rest.split_once(ends).unwrap_or_else(|| panic!("{begins}{line} has no end"));
        new.extend([begins, line, "\n", &made(line.trim_end_matches(" -->")), ends, rest]);
        n += 1;
    }
    (new, n)
}

/// Kills: a figure or a price of another program than the one that runs.
#[test]
fn the_book_has_the_figures_that_commands_print() {
    let (mut tables, mut priced) = (0, 0);
    for entry in std::fs::read_dir(BOOK).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("md".as_ref()) {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        let (new, n) = renewed(&page, FIGURES, "<!-- end of figures -->", figures);
        let (new, m) = renewed(&new, PRICES, "<!-- end of prices -->", prices);
        (tables, priced) = (tables + n, priced + m);
        if crate::rewrites::rewrites() {
            std::fs::write(&path, &new).unwrap();
        }
        let name = Path::file_name(&path);
        let wrong = page.lines().zip(new.lines()).find(|(old, new)| old != new);
        assert!(
            std::fs::read_to_string(&path).unwrap() == new,
            "{name:?} is not what the command says, first in {wrong:?}; EQUIPART_REWRITE=1 writes it anew"
        );
    }
    assert!(tables >= 1 && priced >= 6, "{tables} tables, {priced} tables of prices");
}
