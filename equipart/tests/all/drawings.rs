//! The book's drawings of schedules, and its figures of all of them, are what `equipart schedule` says. `EQUIPART_REWRITE=1
//! cargo test -p equipart drawings` writes them anew.
use crate::child::equipart;
use parallel::pipeline;
use serde_json::Value;
use std::path::Path;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");
/// How a drawing begins; the command's other arguments follow on the line, and what it says on those below.
const DRAWN: &str = "```text\n$ equipart schedule ";
/// How a table of figures begins; the arguments of all its rows follow, and the table after the mark's end.
const FIGURES: &str = "<!-- figures: equipart schedule ";

fn said(line: &str) -> String {
    let args: Vec<_> = ["schedule"].into_iter().chain(line.split_whitespace()).collect();
    let output = equipart(&args);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What the ranks do, and the figures.
fn drawing(line: &str) -> String {
    let shown = |line: &&str| ["rank ", "it takes ", "a rank has "].iter().any(|word| line.starts_with(word));
    said(line).lines().filter(shown).flat_map(|line| [line, "\n"]).collect()
}

/// A row for each kind.
fn figures(line: &str) -> String {
    let row = |word: &str| {
        let of: Value = serde_json::from_str(&said(&format!("--kind {word} {line} --json"))).unwrap();
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

/// The page with what `made` says of the rest of each line that begins so, up to where `ends` is; and how many there were.
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

/// Kills: a drawing or a figure of another table than the one that runs.
#[test]
fn the_book_shows_what_the_command_draws() {
    let (mut drawings, mut tables) = (0, 0);
    for entry in std::fs::read_dir(BOOK).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("md".as_ref()) {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        let (new, n) = renewed(&page, DRAWN, "", "```", drawing);
        let (new, m) = renewed(&new, FIGURES, " -->", "<!-- end of figures -->", figures);
        (drawings, tables) = (drawings + n, tables + m);
        if std::env::var_os("EQUIPART_REWRITE").is_some() {
            std::fs::write(&path, &new).unwrap();
        }
        let name = Path::file_name(&path);
        let wrong = page.lines().zip(new.lines()).find(|(old, new)| old != new);
        assert!(
            std::fs::read_to_string(&path).unwrap() == new,
            "{name:?} is not what the command says, first in {wrong:?}; EQUIPART_REWRITE=1 writes it anew"
        );
    }
    assert!(drawings >= 8 && tables >= 1, "{drawings} drawings, {tables} tables");
}
