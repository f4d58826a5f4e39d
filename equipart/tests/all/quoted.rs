//! Output that the README and the book quote is what its command prints. One rule, for every block that
//! begins so:
//!
//! ```text
//! $ equipart strategies
//!  layout  …
//! …
//! ```
//! A line after `$` is run by a shell, in a folder of the block's own; the lines below it are what it prints.
//! In them `…` stands for any words of a line, such as a figure that varies, and a line of `…` alone for any
//! lines.
//! Blocks without a command quote what no command prints here: bugs that were planted, and times measured on
//! a machine that the page names.
//!
//! `EQUIPART_REWRITE=1 cargo test -p equipart --test all quoted` writes the other words and lines anew.
mod figures;
mod pictures;
mod prose;

use crate::child::output;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const BEGINS: &str = "```text\n$ ";
const ANY: &str = "…";
/// The README's first command, and the one that is run for it: its rows are measured once.
const FIRST: [&str; 2] = ["cargo run --release", "equipart compare --seconds 0"];

/// Pages that may quote output.
fn pages() -> Vec<PathBuf> {
    let book = fs::read_dir(Path::new(ROOT).join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let book = book.filter(|path| path.extension() == Some("md".as_ref()));
    let mut all: Vec<_> = book.chain([Path::new(ROOT).join("README.md")]).collect();
    all.sort();
    all
}

/// Lines that a command of a shell prints, on both streams.
fn printed(line: &str, folder: &Path) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_equipart")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let line = format!("{} 2>&1", line.replace(FIRST[0], FIRST[1]));
    let output = output(Command::new("sh").args(["-c", &line]).env("PATH", path).current_dir(folder));
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect()
}

/// True if quoted words are these words, where `fits` compares two of them, and a word of `…` alone stands
/// for any number.
fn matches<Q: AsRef<str>, S>(quote: &[Q], said: &[S], fits: &impl Fn(&str, &S) -> bool) -> bool {
    let (mut q, mut s, mut retry) = (0, 0, None);
    while s < said.len() {
        if quote.get(q).is_some_and(|word| word.as_ref().trim() == ANY) {
            (retry, q) = (Some((q, s)), q + 1);
        } else if quote.get(q).is_some_and(|word| fits(word.as_ref(), &said[s])) {
            (q, s) = (q + 1, s + 1);
        } else {
            let Some((any, from)) = retry else { return false };
            (retry, q, s) = (Some((any, from + 1)), any + 1, from + 1);
        }
    }
    quote[q..].iter().all(|word| word.as_ref().trim() == ANY)
}

/// True if a quoted word, which may have one `…` in it, is this word.
fn is_word(quote: &str, word: &&str) -> bool {
    let Some((before, after)) = quote.split_once(ANY) else { return quote == *word };
    word.strip_prefix(before).is_some_and(|rest| rest.ends_with(after))
}

fn is_line(quote: &str, line: &impl AsRef<str>) -> bool {
    let [quote, line] = [quote, line.as_ref()].map(|line| line.split_whitespace().collect::<Vec<_>>());
    matches(&quote, &line, &is_word)
}

/// Returns a printed line with `…` where the quoted one has it, as wide as the words that it hides: one word,
/// and the first `…` of a line as many more as the line has.
fn masked(quote: &str, line: &str) -> String {
    let words: Vec<_> = quote.split_whitespace().collect();
    let said: Vec<_> = line.split_whitespace().collect();
    let Some(mut more) = said.len().checked_sub(words.len()) else { return line.to_owned() };
    let (mut rest, mut said, mut new) = (line, said.into_iter(), String::new());
    for word in words {
        let hides = word.contains(ANY);
        let last = said.nth(if hides { std::mem::take(&mut more) } else { 0 }).unwrap_or_default();
        let from = rest.len() - rest.trim_start().len();
        let to = last.as_ptr().addr() + last.len() - rest.as_ptr().addr();
        let width = if to < rest.len() { rest[from..to].chars().count() } else { 0 };
        let shown = if hides { format!("{word:>width$}") } else { rest[from..to].to_owned() };
        new.extend([&rest[..from], &shown]);
        rest = &rest[to..];
    }
    new + rest
}

/// Returns the lines of a quote anew: each is the most similar line printed after the one before.
fn renewed(quote: &[&str], said: &[String]) -> Vec<String> {
    let (mut rest, mut new) = (said, Vec::new());
    let is_whole = !quote.iter().any(|line| line.trim() == ANY);
    if is_whole && quote.len() != said.len() {
        return said.to_vec();
    }
    for line in quote {
        if line.trim() == ANY {
            new.push(ANY.to_owned());
            continue;
        }
        let common = |other: &String| {
            line.split_whitespace().filter(|w| other.split_whitespace().any(|o| o == *w)).count()
        };
        let alike = |i: &usize| (is_line(line, &rest[*i]), common(&rest[*i]), usize::MAX - *i);
        let Some(at) = (0..if is_whole { 1 } else { rest.len() }).max_by_key(alike) else { break };
        new.push(masked(line, &rest[at]));
        rest = &rest[at + 1..];
    }
    new
}

/// Returns a block anew, and its quotes that are not what is printed.
fn checked(block: &str, wrong: &mut Vec<String>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let one = |part: &str| {
        let (line, quote) = part.split_once('\n').unwrap_or((part, ""));
        let (quote, said) = (quote.lines().collect::<Vec<_>>(), printed(line, folder.path()));
        if matches(&quote, &said, &is_line) {
            return part.to_owned();
        }
        wrong.push(format!("$ {line}\n{}", said.join("\n")));
        [vec![line.to_owned()], renewed(&quote, &said)].concat().join("\n")
    };
    block.split("\n$ ").map(one).collect::<Vec<_>>().join("\n$ ")
}

/// Kills: a figure, a drawing, a refusal or a note of another program than this one.
#[test]
fn quoted_output_is_what_the_command_prints() {
    let (mut blocks, mut wrong) = (0, Vec::new());
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        let mut parts = page.split(BEGINS);
        let mut new = parts.next().unwrap().to_owned();
        for part in parts {
            let (block, rest) =
                part.split_once("\n```").unwrap_or_else(|| panic!("{path:?}: a block has no end"));
            new.extend([BEGINS, &checked(block, &mut wrong), "\n```", rest]);
            blocks += 1;
        }
        if crate::rewrites::rewrites() && new != page {
            fs::write(&path, new).unwrap();
        }
    }
    assert!(wrong.is_empty(), "not as quoted; EQUIPART_REWRITE=1 writes it anew:\n{}", wrong.join("\n\n"));
    assert!(blocks >= 20, "{blocks} blocks");
}

/// Kills: a difference that `…` hides, a figure that is written over it, a line that is lost.
#[test]
fn planted_output_is_seen() {
    let said = ["a  17.0k ±3 %  4.14 MB", "b  9 ±1 %  2 MB", "", "end 0x12ab"].map(str::to_owned);
    let is = |quote: &[&str]| matches(quote, &said, &is_line);
    assert!(is(&["a … 4.14 MB", "b … 2 MB", "", "end 0x…"]) && is(&["a …", "…", "end …"]) && is(&["…"]));
    for other in [
        &["a … 4.15 MB", "…"][..],
        &["a … 4.14 MB", "", "end …"],
        &["…", "b … 3 MB", "…"],
        &["a …", "b …", "", "end 0y…"],
        &["a …", "b …", ""],
    ] {
        assert!(!is(other), "{other:?}");
    }
    let quote = ["a         …  4.15 MB", "…", "end 0x…"];
    assert_eq!(renewed(&quote, &said), ["a           …  4.14 MB", "…", "end 0x…"]);
    assert_eq!(masked("x … 2 …", "x  a b c  2  x1.00"), "x      …  2  …");
    assert_eq!(renewed(&["a", "b"], &said), said);
}
