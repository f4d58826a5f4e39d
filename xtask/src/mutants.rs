//! `cargo xtask mutants`: runs the proofs under mutants of communication, and the planner's tests under bugs
//! of the planner, and prints a table of the results.
//! The tests print a line for each subject, mutation and end: `mutants | subject | mutation | end | number`.
mod planner;

use crate::task::{TaskResult, cargo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::process::ExitCode;

/// Tests that try mutants. `tensor` is among the packages because its tests enable features of other crates:
/// with it, everything is built as by the README's test command, and not a second time.
const TESTS: [&str; 2] = [
    "test --quiet --package tensor --package layers --features layers/proof --lib -- --nocapture",
    "test --quiet --package tensor --package layers --package prove --test all mutants:: -- --nocapture",
];
/// Prefix of the tests' lines.
const MARK: &str = "mutants | ";
/// Prefix of the ends of killed mutants, which a difference or an error revealed.
const KILLED: &str = "killed";
const BY_AN_ERROR: &str = "killed by an error";
const SURVIVED: &str = "survived";

/// Runs the tests from the repository's root; fails if they fail, or a mutant survived.
pub(crate) fn run() -> TaskResult {
    let mut table = PrintedTable::default();
    for tests in TESTS {
        println!("cargo {tests}");
        // A mutant may make a rank panic; the backtrace is of no interest.
        let output = cargo().args(tests.split(' ')).env("RUST_BACKTRACE", "0").output();
        let output = output.map_err(|why| format!("mutants cannot start `cargo {tests}`: {why}."))?;
        let text = String::from_utf8_lossy(&output.stdout);
        table.read(&text).map_err(|line| {
            format!("mutants: unreadable test output: {line} is not {MARK}subject | mutation | end | number.")
        })?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr); // panics that tests expect, too
            return Err(format!("{errors}{text}\nmutants: the tests failed, {}.", output.status));
        }
    }
    table.read(&planner::tried()?)?;
    println!("{table}{}", table.verdict());
    Ok(if table.whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Printed numbers of mutants, by subject, mutation and end.
#[derive(Default)]
struct PrintedTable(BTreeMap<(String, String, String), usize>);

impl PrintedTable {
    /// Adds all marked lines of a test's output, also those that begin behind other output.
    ///
    /// # Errors
    /// A line that has other parts.
    fn read(&mut self, text: &str) -> Result<(), String> {
        for line in text.lines() {
            let Some(at) = line.find(MARK) else { continue };
            let parts: Vec<&str> = line[at + MARK.len()..].split(" | ").collect();
            let [subject, mutation, end, number] = parts[..] else { return Err(format!("`{line}`")) };
            let number: usize = number.trim().parse().map_err(|_| format!("`{line}`"))?;
            let key = (subject.to_string(), mutation.to_string(), end.to_string());
            *self.0.entry(key).or_default() += number;
        }
        Ok(())
    }
    /// Number of mutants whose key satisfies `of`.
    fn count(&self, of: impl Fn(&(String, String, String)) -> bool) -> usize {
        self.0.iter().filter(|(key, _)| of(key)).map(|(_, number)| number).sum()
    }
    /// True if mutants were killed, and none survived.
    fn whole(&self) -> bool {
        self.count(|(.., end)| end.starts_with(KILLED)) > 0 && self.count(|(.., end)| end == SURVIVED) == 0
    }
    fn verdict(&self) -> String {
        let killed = self.count(|(.., end)| end.starts_with(KILLED));
        let errors = self.count(|(.., end)| end == BY_AN_ERROR);
        let survived = self.count(|(.., end)| end == SURVIVED);
        let equivalent = self.count(|_| true) - killed - survived;
        let all = killed + survived;
        format!("\n{equivalent} equivalent; {errors} ended their run with an error\n{killed} of {all} killed")
    }
}

/// Prints a row for each subject: killed mutants of each mutation, equivalent and surviving ones of all; then
/// the reasons why some are equivalent.
impl fmt::Display for PrintedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subjects: BTreeSet<_> = self.0.keys().map(|(subject, ..)| subject).collect();
        let mutations: BTreeSet<_> = self.0.keys().map(|(_, mutation, _)| mutation).collect();
        let wide = subjects.iter().map(|subject| subject.len()).max().unwrap_or(0);
        write!(f, "\n{:wide$}", "killed")?;
        mutations.iter().try_for_each(|mutation| write!(f, " {mutation:>9}"))?;
        writeln!(f, "  equivalent  survived")?;
        for subject in subjects {
            write!(f, "{subject:wide$}")?;
            for mutation in &mutations {
                let killed =
                    self.count(|(s, m, end)| s == subject && m == *mutation && end.starts_with(KILLED));
                let there = self.count(|(s, m, _)| s == subject && m == *mutation) > 0;
                write!(f, " {:>9}", if there { killed.to_string() } else { "-".into() })?;
            }
            let equivalent =
                self.count(|(s, _, end)| s == subject && !end.starts_with(KILLED) && end != SURVIVED);
            let survived = self.count(|(s, _, end)| s == subject && end == SURVIVED);
            writeln!(f, " {equivalent:>11} {survived:>9}")?;
        }
        let reasons: BTreeSet<_> = self.0.keys().map(|(_, mutation, end)| (end, mutation)).collect();
        writeln!(f, "\nequivalent, since")?;
        for (end, mutation) in
            reasons.into_iter().filter(|(end, _)| !end.starts_with(KILLED) && *end != SURVIVED)
        {
            let number = self.count(|(_, m, e)| m == mutation && e == end);
            writeln!(f, "{number:>6} {mutation:9} {end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "running 2 tests\n\
        test a ... mutants | column | skip | killed | 3\n\
        mutants | column | repeat | a copy is a copy | 2\n\
        .mutants | row | skip | killed | 4\nmutants | row | skip | killed by an error | 1\ntest result: ok\n";

    /// Kills: a lost line that follows other output, a number overwritten instead of added.
    #[test]
    fn what_tests_printed_is_added_up() {
        let mut table = PrintedTable::default();
        table.read(PRINTED).unwrap();
        assert_eq!(table.verdict(), "\n2 equivalent; 1 ended their run with an error\n8 of 8 killed");
        assert!(table.whole());
        let text = table.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["killed", "repeat", "skip", "equivalent", "survived"]), "{text}");
        assert!(rows.contains(&vec!["column", "0", "3", "2", "0"]), "{text}");
        assert!(rows.contains(&vec!["row", "-", "5", "0", "0"]), "{text}");
        assert!(text.ends_with("equivalent, since\n     2 repeat    a copy is a copy\n"), "{text}");
    }

    /// Kills: a survivor that passes, a run without mutants that passes, a malformed line that is read.
    #[test]
    fn a_survivor_fails_and_so_does_nothing() {
        let mut table = PrintedTable::default();
        assert!(!table.whole());
        table.read(PRINTED).unwrap();
        table.read("mutants | row | tail | survived | 1").unwrap();
        assert!(!table.whole() && table.verdict().ends_with("\n8 of 9 killed"), "{}", table.verdict());
        assert_eq!(table.read("mutants | row | tail | 1").unwrap_err(), "`mutants | row | tail | 1`");
        assert!(table.read("mutants | row | tail | killed | one").is_err());
    }
}
