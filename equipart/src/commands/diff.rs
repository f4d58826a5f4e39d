//! `diff`: compares two runs' tensors, and both with the truth.
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

use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use parallel::Result;
use run::event::{CellValue, Observer, RecordColumn, RunRecord, column};
use serde::Serialize;
use std::path::PathBuf;
use tensor::quoted::displayed;

/// Help text below the flags.
pub(crate) const CODES: &str = "\
Each of A, B and C is a folder that --dump wrote, a model's folder, or one safetensors file. Tensors are matched by name
(and by file, where there are several). C is the same run in f64: train with the same flags and --dtype f64 --dump C.

With --truth a tensor is equal, within rounding, or a bug; without it, the sizes of the differences are
printed, and no verdict. Exit code: 0 if all is equal or within rounding; 1 if there is a bug or, without --truth, a
difference, or if tensors are missing or have two shapes; 2 for bad input.

--json: an object for every tensor (kind \"tensor\"), for every one that could not be compared (\"unmatched\"), and
a last one (\"summary\"). null in place of a number: infinite, because only one of the two values is finite.";

/// Find whether two runs' tensors differ by rounding or by a bug, and where the first bug is
#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct DiffArgs {
    /// One run: a folder that --dump wrote, a model's folder, or a safetensors file
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Another run
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The same run in f64, the truth that judges both [default: no verdict]
    #[arg(long, value_name = "C")]
    truth: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    all: bool,
}

impl Run for DiffArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let report = diff(&self.a, &self.b, self.truth.as_deref())?;
        tell(&report, self.all, views)?;
        Ok(report.is_fine())
    }
}

/// Tells all that was compared, and what follows from it.
fn tell(report: &DiffReport, all: bool, observer: &Observer) -> Result<()> {
    objects(report, observer)?;
    if all {
        observer.table_of(&report.tensors.iter().map(JsonLine::Tensor).collect::<Vec<_>>())?;
        observer.say("")?;
    }
    summary(report, observer)?;
    match (report.first_bug(), report.judged) {
        (Some((bug, before)), _) => first(bug, before, observer)?,
        (None, true) if report.tensors.iter().any(|t| t.verdict.is_none()) => {
            observer.say("\nNo difference that could be judged is more than rounding.")?;
        }
        (None, true) => observer.say("\nNo difference is more than rounding.")?,
        (None, false) => sizes(report, observer)?,
    }
    missing(&report.unmatched, observer)
}

/// Number of tensors of each kind.
#[derive(Serialize)]
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

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum JsonLine<'a> {
    Tensor(&'a TensorDiff),
    Unmatched(&'a Unmatched),
    Summary {
        #[serde(flatten)]
        counts: TensorCounts,
        judged: bool,
        fine: bool,
        first_bug: Option<&'a str>,
        last_good: Option<&'a str>,
    },
}

fn objects(report: &DiffReport, observer: &Observer) -> Result<()> {
    report.tensors.iter().try_for_each(|t| observer.record(&JsonLine::Tensor(t)))?;
    report.unmatched.iter().try_for_each(|u| observer.record(&JsonLine::Unmatched(u)))?;
    let bug = report.first_bug();
    observer.record(&JsonLine::Summary {
        counts: counts(report, None),
        judged: report.judged,
        fine: report.is_fine(),
        first_bug: bug.map(|(bug, _)| bug.name.as_str()),
        last_good: bug.and_then(|(_, before)| before).map(|before| before.name.as_str()),
    })
}

/// Prints a line for each file.
fn summary(report: &DiffReport, observer: &Observer) -> Result<()> {
    let mut files: Vec<&str> = Vec::new();
    for file in report.tensors.iter().map(|t| &t.file).chain(report.unmatched.iter().map(|u| &u.file)) {
        if !files.contains(&file.as_str()) {
            files.push(file);
        }
    }
    let row = |file: &&str| {
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
    observer.table(head, files.iter().map(row))
}

impl RunRecord for JsonLine<'_> {
    fn kind(&self) -> &'static str {
        "tensor"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let Self::Tensor(t) = self else { return Vec::new() };
        let number = |x: Option<f64>| x.map_or(CellValue::None, |x| CellValue::Shown(x, format!("{x:.1e}")));
        let of_truth = |key, title: &'static str| column(key, title).hidden_if(t.a.is_none());
        vec![
            (column("name", "Tensor"), CellValue::Word(displayed(&t.name))),
            (column("file", "file"), CellValue::Word(displayed(&t.file))),
            (column("differ", "differ"), CellValue::Count(t.apart.differ)),
            (column("of", "of"), CellValue::Count(t.apart.of)),
            (column("largest", "largest"), number(t.apart.largest)),
            (column("relative", "relative"), number(t.apart.relative)),
            (of_truth("error_of_a", "error of A"), number(t.a.map(|e| e.mean))),
            (of_truth("error_of_b", "error of B"), number(t.b.map(|e| e.mean))),
            (
                of_truth("verdict", "verdict"),
                CellValue::word(t.verdict.map_or("none", |finding| words(finding)[0])),
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

fn error(of: &str, e: Option<OwnError>) -> String {
    e.map_or(String::new(), |e| format!("  error of {of}: mean {:.1e}, largest {:.1e}\n", e.mean, e.largest))
}

/// Prints the first bug.
fn first(bug: &TensorDiff, before: Option<&TensorDiff>, observer: &Observer) -> Result<()> {
    let errors = |t: &TensorDiff| error("A", t.a) + &error("B", t.b);
    let verdict = bug.verdict.expect("a bug was found");
    let meaning = words(verdict)[1];
    observer.say(&format!("\nThe first bug, in program order, is in {}.\n{meaning}", named(bug)))?;
    let RunDistance { differ, of, .. } = bug.apart;
    observer.say(&format!("  {differ} of {of} elements differ\n{}{}", errors(bug), place(bug)))?;
    if let Some(before) = before {
        let verdict = before.verdict.map_or("not judged", |finding| words(finding)[0]);
        let words = format!("The tensor before it, {}, is {verdict}.\n{}", named(before), errors(before));
        observer.say(&words)?;
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

/// Prints the sizes of the differences, if there is no truth.
fn sizes(report: &DiffReport, observer: &Observer) -> Result<()> {
    let different = || report.tensors.iter().filter(|t| t.apart.differ > 0);
    let equal = if report.unmatched.is_empty() {
        "All tensors are equal."
    } else {
        "All compared tensors are equal."
    };
    let Some(first) = different().next() else { return observer.say(&format!("\n{equal}")) };
    let relative = |t: &TensorDiff| t.apart.relative.unwrap_or(0.0);
    let worst = different().max_by(|x, y| relative(x).total_cmp(&relative(y))).unwrap_or(first);
    let tell = |what: &str, t: &TensorDiff| {
        let size = t.apart.largest.map_or(String::new(), |largest| {
            format!(", the largest difference is {largest:.1e}, relative {:.1e}", relative(t))
        });
        let RunDistance { differ, of, .. } = t.apart;
        observer.say(&format!(
            "\n{what} {}.\n  {differ} of {of} elements differ{size}\n{}",
            named(t),
            place(t).trim_end()
        ))
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

fn missing(unmatched: &[Unmatched], observer: &Observer) -> Result<()> {
    if unmatched.is_empty() {
        return Ok(());
    }
    observer.say("\nNot compared:")?;
    let say = |Unmatched { file, name, why }: &Unmatched| {
        observer.say(&format!("  {} of {}: {why}", displayed(name), displayed(file)))
    };
    unmatched.iter().try_for_each(say)
}
