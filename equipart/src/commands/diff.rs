//! `diff`: two runs' tensors, and the truth of both.
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
pub use measure::{Apart, Error as OwnError, Worst};
pub use report::{Compared, DiffReport, Unmatched, diff, dimensions};

use crate::cli::out::line;
use crate::cli::show;
use clap::Args;
use parallel::Result;
use serde::Serialize;
use std::path::PathBuf;
use tensor::quoted::shown;

/// Below the flags.
pub(crate) const CODES: &str = "\
Each of A, B and C is a folder that --dump wrote, a model's folder, or one safetensors file. Tensors are matched by name
(and by file, where there are several). C is the same run in f64: train with the same flags and --number f64 --dump C.

With --truth a tensor is equal, within rounding, or a bug; without it the sizes of the differences are told, and no
verdict. Exit code: 0 where all is equal or within rounding; 1 where there is a bug, or, without --truth, a difference,
or where tensors are missing or have two shapes; 2 for bad input.

--json: an object for every tensor (kind \"tensor\"), for every one that could not be compared (\"unmatched\"), and
a last one (\"summary\"). null among numbers: infinite, as a number stands where none should, or the other way round.";

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// One run: a folder that --dump wrote, a model's folder, or a safetensors file
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Another run
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The same run in f64, by which both are judged [default: no verdict]
    #[arg(long, value_name = "C")]
    truth: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &DiffArgs, json: bool) -> Result<bool> {
    let report = diff(&args.a, &args.b, args.truth.as_deref())?;
    let fine = report.is_fine();
    if json {
        objects(&report);
        return Ok(fine);
    }
    if args.all {
        line(&format!("{}\n", show::table(&head(report.judged), report.tensors.iter().map(cells))));
    }
    summary(&report);
    match (report.first_bug(), report.judged) {
        (Some((bug, before)), _) => first(bug, before),
        (None, true) if report.tensors.iter().any(|t| t.verdict.is_none()) => {
            line("\nNo difference that could be judged is more than rounding.");
        }
        (None, true) => line("\nNo difference is more than rounding."),
        (None, false) => sizes(&report),
    }
    missing(&report.unmatched);
    Ok(fine)
}

/// How many tensors of each kind.
#[derive(Default, Serialize)]
struct Counts {
    tensors: usize,
    equal: usize,
    rounding: usize,
    bugs: usize,
    unjudged: usize,
    unmatched: usize,
}

impl Counts {
    fn of<'a>(tensors: impl Iterator<Item = &'a Compared>, unmatched: usize) -> Self {
        let mut counts = Self { unmatched, ..Self::default() };
        for tensor in tensors {
            counts.tensors += 1;
            match tensor.verdict {
                Some(Finding::Equal) => counts.equal += 1,
                Some(Finding::Rounding) => counts.rounding += 1,
                Some(_) => counts.bugs += 1,
                None => counts.unjudged += 1,
            }
        }
        counts
    }
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Object<'a> {
    Tensor(&'a Compared),
    Unmatched(&'a Unmatched),
    Summary {
        #[serde(flatten)]
        counts: Counts,
        judged: bool,
        fine: bool,
        first_bug: Option<&'a str>,
        last_good: Option<&'a str>,
    },
}

fn objects(report: &DiffReport) {
    report.tensors.iter().for_each(|t| show::json(&Object::Tensor(t)));
    report.unmatched.iter().for_each(|u| show::json(&Object::Unmatched(u)));
    let bug = report.first_bug();
    show::json(&Object::Summary {
        counts: Counts::of(report.tensors.iter(), report.unmatched.len()),
        judged: report.judged,
        fine: report.is_fine(),
        first_bug: bug.map(|(bug, _)| bug.name.as_str()),
        last_good: bug.and_then(|(_, before)| before).map(|before| before.name.as_str()),
    });
}

/// A line for each file.
fn summary(report: &DiffReport) {
    let mut files: Vec<&str> = Vec::new();
    for file in report.tensors.iter().map(|t| &t.file).chain(report.unmatched.iter().map(|u| &u.file)) {
        if !files.contains(&file.as_str()) {
            files.push(file);
        }
    }
    let counts = |file: &str| {
        let unmatched = report.unmatched.iter().filter(|u| u.file == file).count();
        Counts::of(report.tensors.iter().filter(|t| t.file == file), unmatched)
    };
    let row = |file: &&str| {
        let Counts { tensors, equal, rounding, bugs, unjudged, unmatched } = counts(file);
        let counts = if report.judged {
            vec![tensors, equal, rounding, bugs, unmatched]
        } else {
            vec![tensors, equal, bugs + unjudged, unmatched]
        };
        std::iter::once(shown(file)).chain(counts.iter().map(usize::to_string)).collect()
    };
    let head: &[&str] = if report.judged {
        &["File", "tensors", "equal", "rounding", "bug", "not compared"]
    } else {
        &["File", "tensors", "equal", "different", "not compared"]
    };
    line(&format!("{}", show::table(head, files.iter().map(row))));
}

fn head(judged: bool) -> Vec<&'static str> {
    let mut head = vec!["Tensor", "file", "differ", "of", "largest", "relative"];
    if judged {
        head.extend(["error of A", "error of B", "verdict"]);
    }
    head
}

fn cells(t: &Compared) -> Vec<String> {
    let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.1e}"));
    let mut cells = vec![shown(&t.name), shown(&t.file), t.apart.differ.to_string(), t.apart.of.to_string()];
    cells.extend([number(t.apart.largest), number(t.apart.relative)]);
    cells.extend([number(t.a.map(|e| e.mean)), number(t.b.map(|e| e.mean))]);
    cells.push(t.verdict.map_or("none", words).into());
    cells
}

fn words(verdict: Finding) -> &'static str {
    match verdict {
        Finding::Equal => "equal",
        Finding::Rounding => "rounding",
        Finding::BugInA => "a bug in A",
        Finding::BugInB => "a bug in B",
        Finding::BugInBoth => "a bug in both",
        Finding::Exact => "a bug",
    }
}

fn sentence(verdict: Finding) -> &'static str {
    match verdict {
        Finding::BugInA => "A departs from the truth by more than rounding, B does not.",
        Finding::BugInB => "B departs from the truth by more than rounding, A does not.",
        Finding::BugInBoth => {
            "Both depart from the truth by more than rounding: a bug of both, or the truth is that of another run."
        }
        Finding::Exact => "These numbers do not round, and differ.",
        Finding::Equal | Finding::Rounding => "",
    }
}

fn named(t: &Compared) -> String {
    format!("{} {} of {}", shown(&t.name), dimensions(&t.shape), shown(&t.file))
}

fn error(of: &str, e: Option<OwnError>) -> String {
    e.map_or(String::new(), |e| format!("  error of {of}: mean {:.1e}, largest {:.1e}\n", e.mean, e.largest))
}

/// Where it starts.
fn first(bug: &Compared, before: Option<&Compared>) {
    let errors = |t: &Compared| error("A", t.a) + &error("B", t.b);
    let verdict = bug.verdict.expect("a bug was found");
    line(&format!("\nThe first bug, in program order, is in {}.\n{}", named(bug), sentence(verdict)));
    line(&format!(
        "  {} of {} elements differ\n{}{}",
        bug.apart.differ,
        bug.apart.of,
        errors(bug),
        place(bug)
    ));
    if let Some(before) = before {
        let verdict = before.verdict.map_or("not judged", words);
        line(&format!("The tensor before it, {}, is {verdict}.\n{}", named(before), errors(before)));
    }
    if bug.file == "weights" {
        line("Weights are those before the step: an earlier step went wrong, or where they come from.");
    }
}

/// Where a tensor is worst.
fn place(t: &Compared) -> String {
    let Some(worst) = &t.worst else { return String::new() };
    let token = worst.token.map_or(String::new(), |[s, p]| format!(" (sequence {s}, position {p})"));
    let truth = worst.truth.map_or(String::new(), |x| format!(", truth {x:e}"));
    format!("  furthest off at {:?}{token}: A {:e}, B {:e}{truth}\n", worst.at, worst.a, worst.b)
}

/// Without a truth: how large the differences are.
fn sizes(report: &DiffReport) {
    let different = || report.tensors.iter().filter(|t| t.apart.differ > 0);
    let equal = if report.unmatched.is_empty() {
        "All tensors are equal."
    } else {
        "All that were compared are equal."
    };
    let Some(first) = different().next() else { return line(&format!("\n{equal}")) };
    let relative = |t: &Compared| t.apart.relative.unwrap_or(0.0);
    let worst = different().max_by(|x, y| relative(x).total_cmp(&relative(y))).unwrap_or(first);
    let tell = |what: &str, t: &Compared| {
        let size = t.apart.largest.map_or(String::new(), |largest| {
            format!(", the largest difference is {largest:.1e}, relative {:.1e}", relative(t))
        });
        let (differ, of) = (t.apart.differ, t.apart.of);
        line(&format!(
            "\n{what} {}.\n  {differ} of {of} elements differ{size}\n{}",
            named(t),
            place(t).trim_end()
        ));
    };
    if relative(first) >= relative(worst) {
        tell("The first that differs, and the most, is", first);
    } else {
        tell("The first that differs is", first);
        tell("The one that differs most is", worst);
    }
    line(
        "\nWhether that is rounding, only a truth can say: --truth C, the same run with --number f64 --dump C.",
    );
}

fn missing(unmatched: &[Unmatched]) {
    if unmatched.is_empty() {
        return;
    }
    line("\nNot compared:");
    for Unmatched { file, name, why } in unmatched {
        line(&format!("  {} of {}: {why}", shown(name), shown(file)));
    }
}
