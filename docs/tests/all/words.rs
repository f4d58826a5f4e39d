//! Plain words: doc comments open with the item's noun or verb, comments and headers are short. The first
//! half of the file holds the checks, which return their violations, one line each; the second half plants
//! some.

use crate::tree::{File, files, none};

/// Words that a doc comment does not open with: each of them leaves the reader without the item's noun.
const OPENINGS: [&str; 10] =
    ["What", "Who", "Whose", "Which", "Whether", "Where", "That", "Those", "Of", "It"];
const COLUMNS: usize = 110;
const HEADER: usize = 15;

/// Returns the text of a doc comment's line, `None` for other lines.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Doc comments that open with one of [`OPENINGS`].
fn openings(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut inside = false;
    for (at, line) in file.text.lines().enumerate() {
        let text = doc(line);
        if let (Some(text), false) = (text, inside) {
            let first = text.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if OPENINGS.contains(&first) {
                wrong.push(format!("{}:{}: a doc comment opens with `{first}`", file.path, at + 1));
            }
        }
        inside = text.is_some();
    }
    wrong
}

/// Lines of comments that are longer than [`COLUMNS`], and headers of more than [`HEADER`] lines.
fn long_comments(file: &File) -> Vec<String> {
    let is_comment = |line: &str| line.trim_start().starts_with("//") || line.contains(" // ");
    let lines = file.text.lines().enumerate();
    let long = lines.filter(|(_, line)| line.chars().count() > COLUMNS && is_comment(line));
    let long = long.map(|(at, _)| format!("{}:{}: more than {COLUMNS} columns", file.path, at + 1));
    let header = file.text.lines().filter(|line| line.starts_with("//!")).count();
    let header = (header > HEADER).then(|| format!("{}: a header of {header} lines", file.path));
    long.chain(header).collect()
}

#[test]
fn docs_open_with_a_noun_or_a_verb() {
    none(&files().iter().filter(|file| file.is("rs")).flat_map(openings).collect::<Vec<_>>());
}

#[test]
fn comments_and_headers_are_short() {
    none(&files().iter().filter(|file| file.is("rs")).flat_map(long_comments).collect::<Vec<_>>());
}

#[test]
fn planted_words_are_seen() {
    let text = "//! Fine.\n\n/// Which one.\n/// Of these.\nfn a() {}\n/// Whatever fits.\n// What is not checked.\n";
    assert_eq!(openings(&File::new("a.rs", text)), ["a.rs:3: a doc comment opens with `Which`"]);
    let (header, long) = ("//! a\n".repeat(16), "é".repeat(108));
    let text = format!("{header}// {long}\n// {}\nlet x = 1; // {long}\n", &long[2..]);
    let wrong = ["b.rs:17: more than 110 columns", "b.rs:19: more than 110 columns"];
    assert_eq!(
        long_comments(&File::new("b.rs", text)),
        [&wrong[..], &["b.rs: a header of 16 lines"]].concat()
    );
}
