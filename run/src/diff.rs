//! Differences of two runs' tensors, and of both from the truth.
//!
//! ```text
//! source.rs    dumps, checkpoints, files of other programs: tensors by name, in program order
//! measure.rs   one tensor of two runs and the truth: how far apart
//! judge.rs     equal, rounding, or a bug, and of which run
//! report.rs    all tensors, and the first bug among them
//! ```
mod judge;
mod measure;
mod report;
mod source;

pub use judge::{FLOOR, Finding, OUTLIER, TIMES, far};
pub use measure::{Error as OwnError, RunDistance, TensorDiff, Worst};
pub use report::{DiffReport, diff, dimensions};
pub use source::Unmatched;

use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column};
use crate::records;
use parallel::Result;
use serde::Serialize;
use std::collections::BTreeSet;
use tensor::quoted::displayed;

impl DiffReport {
    /// Tells all that was compared, with a table of all tensors if asked for, and what follows from it.
    /// Returns true if all tensors are matched and fine.
    ///
    /// # Errors
    /// If the observer fails.
    pub fn tell(&self, all: bool, observer: &Observer) -> Result<bool> {
        observer.records(&self.tensors)?;
        observer.records(&self.unmatched)?;
        let bug = self.first_bug();
        let counts = counts(self, None);
        observer.record(&DiffSummary {
            counts,
            judged: self.judged,
            fine: self.is_fine(),
            first_bug: bug.map(|(bug, _)| bug.name.as_str()),
            last_good: bug.and_then(|(_, before)| before).map(|before| before.name.as_str()),
        })?;
        if all {
            observer.table_of(&self.tensors)?;
            observer.say("")?;
        }
        summary(self, observer)?;
        match (bug, self.judged) {
            (Some((bug, before)), _) => first(bug, before, observer)?,
            (None, true) if counts.unjudged > 0 => {
                observer.say("\nNo difference that could be judged is more than rounding.")?;
            }
            (None, true) => observer.say("\nNo difference is more than rounding.")?,
            (None, false) => sizes(self, observer)?,
        }
        if !self.unmatched.is_empty() {
            observer.say("\nNot compared:")?;
        }
        for Unmatched { file, name, why } in &self.unmatched {
            observer.say(&format!("  {} of {}: {why}", displayed(name), displayed(file)))?;
        }
        Ok(self.is_fine())
    }
}

/// Number of tensors of each kind.
#[derive(Clone, Copy, Serialize)]
struct TensorCounts {
    tensors: usize,
    equal: usize,
    rounding: usize,
    bugs: usize,
    unjudged: usize,
    unmatched: usize,
}

/// Counts the tensors of a file, or of all files.
fn counts(report: &DiffReport, file: Option<&str>) -> TensorCounts {
    let asked = |of: &str| file.is_none_or(|file| of == file);
    let findings: Vec<_> = report.tensors.iter().filter(|t| asked(&t.file)).map(|t| t.verdict).collect();
    let of = |finding| findings.iter().filter(|seen| **seen == finding).count();
    let [equal, rounding, unjudged] = [Some(Finding::Equal), Some(Finding::Rounding), None].map(of);
    let unmatched = report.unmatched.iter().filter(|u| asked(&u.file)).count();
    let bugs = findings.len() - equal - rounding - unjudged;
    TensorCounts { tensors: findings.len(), equal, rounding, bugs, unjudged, unmatched }
}

/// Findings in all tensors.
#[derive(Serialize)]
#[serde(tag = "kind", rename = "summary")]
struct DiffSummary<'a> {
    #[serde(flatten)]
    counts: TensorCounts,
    judged: bool,
    fine: bool,
    first_bug: Option<&'a str>,
    last_good: Option<&'a str>,
}

records!(Unmatched: "unmatched", DiffSummary<'_>: "summary");

/// Tells a line for each file.
fn summary(report: &DiffReport, observer: &Observer) -> Result<()> {
    let files = report.tensors.iter().map(|t| &*t.file).chain(report.unmatched.iter().map(|u| &*u.file));
    let mut seen = BTreeSet::new();
    let files = files.filter(|file| seen.insert(*file));
    let row = |file: &str| {
        let TensorCounts { tensors, equal, rounding, bugs, unjudged, unmatched } = counts(report, Some(file));
        let counts = if report.judged {
            vec![tensors, equal, rounding, bugs, unmatched]
        } else {
            vec![tensors, equal, bugs + unjudged, unmatched]
        };
        std::iter::once(displayed(file)).chain(counts.iter().map(usize::to_string)).collect()
    };
    let head: &[&str] = if report.judged {
        &["File", "tensors", "equal", "rounding", "bug", "not compared"]
    } else {
        &["File", "tensors", "equal", "different", "not compared"]
    };
    observer.table(head, files.map(row))
}

impl RunRecord for TensorDiff {
    fn kind(&self) -> &'static str {
        "tensor"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let number = |x: Option<f64>| x.map_or(CellValue::None, |x| CellValue::Shown(x, format!("{x:.1e}")));
        let of_truth = |key, title: &'static str| column(key, title).hidden_if(self.a.is_none());
        vec![
            (column("name", "Tensor"), CellValue::Word(displayed(&self.name))),
            (column("file", "file"), CellValue::Word(displayed(&self.file))),
            (column("differ", "differ"), CellValue::Count(self.apart.differ)),
            (column("of", "of"), CellValue::Count(self.apart.of)),
            (column("largest", "largest"), number(self.apart.largest)),
            (column("relative", "relative"), number(self.apart.relative)),
            (of_truth("error_of_a", "error of A"), number(self.a.map(|e| e.mean))),
            (of_truth("error_of_b", "error of B"), number(self.b.map(|e| e.mean))),
            (
                of_truth("verdict", "verdict"),
                CellValue::word(self.verdict.map_or("none", |finding| words(finding)[0])),
            ),
        ]
    }
}

/// Name of a finding, and for a bug its meaning.
fn words(verdict: Finding) -> [&'static str; 2] {
    match verdict {
        Finding::Equal => ["equal", ""],
        Finding::Rounding => ["rounding", ""],
        Finding::BugInA => ["a bug in A", "A departs from the truth by more than rounding, B does not."],
        Finding::BugInB => ["a bug in B", "B departs from the truth by more than rounding, A does not."],
        Finding::BugInBoth => [
            "a bug in both",
            "Both depart from the truth by more than rounding: both have a bug, or the truth is that of another run.",
        ],
        Finding::Exact => ["a bug", "These values do not round, but differ."],
    }
}

fn named(t: &TensorDiff) -> String {
    format!("{} {} of {}", displayed(&t.name), dimensions(&t.shape), displayed(&t.file))
}

fn differ(t: &TensorDiff) -> String {
    format!("{} of {} elements differ", t.apart.differ, t.apart.of)
}

fn errors(t: &TensorDiff) -> String {
    let error = |(of, e): (&str, OwnError)| {
        format!("  error of {of}: mean {:.1e}, largest {:.1e}\n", e.mean, e.largest)
    };
    [("A", t.a), ("B", t.b)].into_iter().filter_map(|(of, e)| Some(error((of, e?)))).collect()
}

/// Tells the first bug.
fn first(bug: &TensorDiff, before: Option<&TensorDiff>, observer: &Observer) -> Result<()> {
    let meaning = bug.verdict.map_or("", |finding| words(finding)[1]);
    observer.say(&format!("\nThe first bug, in program order, is in {}.\n{meaning}", named(bug)))?;
    observer.say(&format!("  {}\n{}{}", differ(bug), errors(bug), place(bug)))?;
    if let Some(before) = before {
        let verdict = before.verdict.map_or("not judged", |finding| words(finding)[0]);
        let errors = errors(before);
        observer.say(&format!("The tensor before it, {}, is {verdict}.\n{errors}", named(before)))?;
    }
    if bug.file == "weights" {
        observer.say(
            "Weights are those before the step: the bug is in an earlier step, or in the initial weights.",
        )?;
    }
    Ok(())
}

/// Describes the element that is furthest off.
fn place(t: &TensorDiff) -> String {
    let Some(worst) = &t.worst else { return String::new() };
    let token = worst.token.map_or(String::new(), |[s, p]| format!(" (sequence {s}, position {p})"));
    let truth = worst.truth.map_or(String::new(), |x| format!(", truth {x:e}"));
    format!("  furthest off at {:?}{token}: A {:e}, B {:e}{truth}\n", worst.at, worst.a, worst.b)
}

/// Tells the sizes of the differences, if there is no truth.
fn sizes(report: &DiffReport, observer: &Observer) -> Result<()> {
    let different = || report.tensors.iter().filter(|t| t.apart.differ > 0);
    let Some(first) = different().next() else {
        let which = if report.unmatched.is_empty() { "" } else { " compared" };
        return observer.say(&format!("\nAll{which} tensors are equal."));
    };
    let relative = |t: &TensorDiff| t.apart.relative.unwrap_or(0.0);
    let worst = different().max_by(|x, y| relative(x).total_cmp(&relative(y))).unwrap_or(first);
    let tell = |what: &str, t: &TensorDiff| {
        let size = t.apart.largest.map_or(String::new(), |largest| {
            format!(", the largest difference is {largest:.1e}, relative {:.1e}", relative(t))
        });
        let differ = differ(t);
        observer.say(&format!("\n{what} {}.\n  {differ}{size}\n{}", named(t), place(t).trim_end()))
    };
    if relative(first) >= relative(worst) {
        tell("The first difference, and the largest, is in", first)?;
    } else {
        tell("The first difference is in", first)?;
        tell("The largest difference is in", worst)?;
    }
    observer.say(
        "\nOnly a truth can tell whether that is rounding: --truth C, the same run with --dtype f64 --dump C.",
    )
}
