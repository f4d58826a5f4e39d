//! The book's drawings of schedules, and its figures of all of them, are what `equipart schedule` says; its
//! tables of prices are what `equipart price` says. `EQUIPART_REWRITE=1 cargo test -p equipart drawings`
//! writes them anew.
use crate::child::equipart;
use parallel::pipeline;
use serde_json::Value;
use std::path::Path;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");
/// How a drawing begins; the command's other arguments follow on the line, and what it says on those below.
const DRAWN: &str = "```text\n$ equipart schedule ";
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

/// The ranks' rows, and the figures.
fn drawing(line: &str) -> String {
    let displayed = |line: &&str| {
        ["rank ", "ticks ", "it takes ", "a rank saves "].iter().any(|word| line.starts_with(word))
    };
    said(&format!("schedule {line}")).lines().filter(displayed).flat_map(|line| [line, "\n"]).collect()
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
    format!("\n{head}{}\n", rows.collect::<String>())
}

/// The page with what `made` says of the rest of each line that begins so, up to where `ends` is; and how
/// many there were.
fn renewed(
    page: &str,
    begins: &str,
    after: &str,
    ends: &str,
    made: impl Fn(&str) -> String,
) -> (String, usize) {
    let mut parts = page.split(begins);
    let mut new = parts.next().unwrap().to_string();
    let mut n = 0;
    for part in parts {
        let (line, rest) = part.split_once('\n').unwrap();
        let (_, rest) = rest.split_once(ends).unwrap_or_else(|| panic!("{begins}{line} has no end"));
        new.extend([begins, line, "\n", &made(line.trim_end_matches(after)), ends, rest]);
        n += 1;
    }
    (new, n)
}

/// Sees that a page of the book has what a command said, in a block that begins so: line breaks, keys and
/// what the block leaves out, by `…`, may differ.
pub(crate) fn is_quoted(page: &str, begins: &str, said: &str) {
    let plain = |text: &str| {
        let word = |word: &str| if word.starts_with("0x") { "0x".into() } else { word.to_owned() };
        text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    };
    let text = std::fs::read_to_string(format!("{BOOK}/{page}")).unwrap();
    let begun =
        text.find(&format!("```text\n{begins}")).unwrap_or_else(|| panic!("no block of {page} has {begins}"));
    let (block, _) = text[begun + "```text".len()..].split_once("```").unwrap();
    let (said, mut from) = (plain(said), 0);
    for part in block.split('…').map(plain) {
        let at = said[from..].find(&part).unwrap_or_else(|| panic!("{page} quotes\n{part}\nof\n{said}"));
        from += at + part.len();
    }
}

/// Kills: an all-reduce in the book that goes by other messages than the one that runs.
#[test]
fn the_book_shows_who_sends_what_to_whom() {
    for (begins, args) in [
        ("ring all-reduce: 1048576", &["--algorithm", "ring", "--ranks", "4"][..]),
        ("tree all-reduce: 24", &["--algorithm", "tree", "--ranks", "6", "--elements", "24"]),
    ] {
        let output = equipart(&[&["collectives"], args].concat());
        is_quoted("the-ring.md", begins, std::str::from_utf8(&output.stdout).unwrap());
    }
}

/// Kills: hops in the book that are not those of a run.
#[test]
fn the_book_shows_which_keys_travel() {
    let output = equipart(&["context", "--layout", "cp=2", "--seq", "12"]);
    is_quoted("commands.md", "cp=2:zigzag:ring: 12", std::str::from_utf8(&output.stdout).unwrap());
}

/// Kills: a refusal or a largest batch in the book that is not the program's.
#[test]
fn the_book_shows_what_a_limit_allows() {
    let limit = ["--layout", "dp=2", "--seq", "64", "--memory-limit", "18MB"];
    let refused = equipart(&[&["train"], &limit[..]].concat());
    assert_eq!(refused.status.code(), Some(2));
    let largest = equipart(&[&["price", "--largest-batch"], &limit[..]].concat());
    for (begins, said) in [
        ("error: rank 0 under dp=2", refused.stderr),
        ("The largest batch in f32 under dp=2", largest.stdout),
    ] {
        is_quoted("fitting-a-model.md", begins, std::str::from_utf8(&said).unwrap());
    }
}

/// Kills: a drawing, a figure or a price of another program than the one that runs.
#[test]
fn the_book_shows_what_the_command_draws() {
    let (mut drawings, mut tables, mut priced) = (0, 0, 0);
    for entry in std::fs::read_dir(BOOK).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("md".as_ref()) {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        let (new, n) = renewed(&page, DRAWN, "", "```", drawing);
        let (new, m) = renewed(&new, FIGURES, " -->", "<!-- end of figures -->", figures);
        let (new, k) = renewed(&new, PRICES, " -->", "<!-- end of prices -->", prices);
        (drawings, tables, priced) = (drawings + n, tables + m, priced + k);
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
    let all = drawings >= 8 && tables >= 1 && priced >= 6;
    assert!(all, "{drawings} drawings, {tables} tables, {priced} tables of prices");
}
