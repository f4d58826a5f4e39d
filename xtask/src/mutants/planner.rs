//! Bugs of the planner, of prices, of found shardings, of sparse messages and of optimizer state: words of a
//! source are replaced in a copy of the tree, and the tests of what they are in must fail. The list is
//! `plan/mutants.txt`.
use crate::museum::{scratch, target};
use crate::{cargo, root};
use std::fs;
use std::path::Path;

/// The list, from the root. A line has a file, words that occur in it once, and the words of the bug.
const LIST: &str = "plan/mutants.txt";
/// Tests that run under a bug of sparse messages, of optimizer state, of a layer's graph, and under each
/// other bug.
const OF_SPARSE: [&str; 2] = [
    "test --quiet --package parallel --lib sparse",
    "test --quiet --package prove --test all strategies::every",
];
const OF_STATE: [&str; 7] = [
    "test --quiet --package ops --lib optimizer::",
    "test --quiet --package layers --lib decay",
    "test --quiet --package outside --lib counted::",
    "test --quiet --package parallel --lib whole_matrices",
    "test --quiet --package parallel --lib coded_moments",
    "test --quiet --package parallel --lib loss_scal",
    "test --quiet --package prove --test all layouts::adamw",
];
const OF_GRAPHS: [&str; 2] =
    ["test --quiet --package layers --lib graph::", "test --quiet --package prove --test all graphs::"];
const TESTS: [&str; 2] = ["test --quiet --package plan", "test --quiet --package parallel --lib price::"];

/// A bug.
#[derive(Debug, PartialEq)]
struct Bug<'a> {
    file: &'a str,
    words: String,
    replaced: String,
}

impl<'a> Bug<'a> {
    /// Reads a line; `\|` stands for a bar in words.
    fn read(line: &'a str) -> Option<Self> {
        let (file, rest) = line.split_once(" | ")?;
        let (words, bug) = rest.split_once(" | ")?;
        let [words, replaced] = [words, bug].map(|text| text.replace(r"\|", "|"));
        Some(Self { file, words, replaced })
    }
    /// Returns the source with the bug.
    ///
    /// # Errors
    /// If the words do not occur exactly once.
    fn planted(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.words).count() {
            1 => Ok(source.replacen(&self.words, &self.replaced, 1)),
            n => Err(format!(
                "mutants: {LIST} replaces `{}` in {}, where it occurs {n} times",
                self.words, self.file
            )),
        }
    }
}

/// Tries all bugs. Returns a line for each, as the proofs print theirs.
///
/// # Errors
/// If a line of the list does not apply or does not compile.
pub(super) fn tried() -> Result<String, String> {
    let list =
        fs::read_to_string(root().join(LIST)).map_err(|why| format!("{LIST} cannot be read ({why})"))?;
    let target = target()?;
    let tree = scratch::make(scratch::tracked(root())?, &target.join("planner"), Vec::new(), &[])?;
    let mut printed = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let bug = Bug::read(line).ok_or_else(|| format!("{LIST}: `{line}` is not FILE | WORDS | BUG"))?;
        let path = tree.join(bug.file);
        let source =
            fs::read_to_string(&path).map_err(|why| format!("{} cannot be read ({why})", bug.file))?;
        let write = |text: &str| fs::write(&path, text).map_err(|why| format!("{} ({why})", bug.file));
        write(&bug.planted(&source)?)?;
        let tests = match bug.file {
            file if file.ends_with("/features.rs") || file.ends_with("/sent.rs") => &OF_SPARSE[..],
            file if ["/param/", "/optimizer", "/checkpoint/", "/adamw_8bit"]
                .iter()
                .any(|of| file.contains(of)) =>
            {
                &OF_STATE
            }
            file if file.starts_with("layers/") => &OF_GRAPHS,
            _ => &TESTS,
        };
        let end = tested((&tree, tests), &target);
        write(&source)?;
        let end = if end.map_err(|why| format!("{line}\n{why}"))? { "survived" } else { "killed" };
        println!("{end}: {line}");
        printed.push(format!("mutants | {} | bug | {end} | 1", bug.file));
    }
    Ok(printed.join("\n"))
}

/// Returns true if all these tests pass in a tree.
///
/// # Errors
/// If they do not compile.
fn tested((tree, tests): (&Path, &[&str]), target: &Path) -> Result<bool, String> {
    for tests in tests {
        for more in [&["--no-run"][..], &[]] {
            let mut command = cargo();
            command.current_dir(tree).env("CARGO_TARGET_DIR", target).env("RUST_BACKTRACE", "0");
            let output = command.args(tests.split(' ')).args(more).output();
            let output = output.map_err(|why| format!("mutants cannot start `cargo {tests}`: {why}."))?;
            match (output.status.success(), more.is_empty()) {
                (true, _) => {}
                (false, true) => return Ok(false),
                (false, false) => return Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line of the list applies to the tree as it is. Kills: a bug whose words have moved, and that so
    /// would be tried by nobody; words that occur twice.
    #[test]
    fn all_bugs_of_the_list_apply() {
        let list = fs::read_to_string(root().join(LIST)).unwrap();
        let lines: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() >= 30, "{} bugs", lines.len());
        for line in lines {
            let bug = Bug::read(line).expect(line);
            let source = fs::read_to_string(root().join(bug.file)).unwrap();
            assert_ne!(bug.planted(&source).unwrap(), source);
        }
        let read = Bug::read(r"a.rs | x \| y | x").unwrap();
        assert_eq!(read, Bug { file: "a.rs", words: "x | y".into(), replaced: "x".into() });
        assert!(read.planted("x | y, x | y").unwrap_err().ends_with("where it occurs 2 times"));
    }
}
