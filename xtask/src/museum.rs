//! `cargo xtask museum`: puts bugs that real systems shipped, each a patch in `museum/`, into a scratch copy
//! behind a switch. The proof that a label names must pass with the bug off, and fail with it on. Exercises
//! of the book, patches in `docs/break/`, run in the same way, and must print what their chapters quote.
mod build;
mod exercises;
pub(crate) mod header;
mod loss;
mod passed;
pub(crate) mod patch;
pub(crate) mod place;
mod run;
pub(crate) mod scratch;

use crate::task::{TaskResult, root};
use build::ExhibitPrograms;
use header::{Exercise, Killer, Label};
use loss::Loss;
use passed::PassedRecord;
use patch::{Edit, Edits, Files};
use run::{LIMIT, ProofVerdict, each, ran};
use scratch::{ScratchCopy, target};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Folder of the exhibits: patches, and code that does not compile.
const FOLDER: &str = "museum";

/// Exhibits and exercises to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection<'a> {
    /// Runs all.
    All,
    /// Runs those whose files are not what they were when they last passed.
    Changed,
    /// Runs one exhibit by its number, or one exercise by its name.
    One(&'a str),
}

impl Selection<'_> {
    fn takes(self, name: &str, has_passed: bool) -> bool {
        match self {
            Selection::All => true,
            Selection::Changed => !has_passed,
            Selection::One(only) => only == name,
        }
    }
}

/// Runs exhibits and exercises, and records those that pass.
pub(crate) fn run(selection: Selection) -> TaskResult {
    run_museum(selection).map_err(|why| format!("The museum cannot run: {why}."))
}

/// One exhibit, and its results.
struct ExhibitResult<'a> {
    label: &'a Label,
    verdict: ProofVerdict,
    loss: String,
}

fn run_museum(selection: Selection) -> TaskResult {
    let start = Instant::now();
    let files = scratch::tracked(root())?;
    let labels = read::<Label>(&files, FOLDER)?;
    let exercises = read::<Exercise>(&files, exercises::FOLDER)?;
    let wrong = header::disorder(&labels);
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    let mut record = PassedRecord::read(root());
    let edits = edits(&files, &labels, &exercises)?;
    let digests = digests((&files, &edits), &labels, &exercises);
    record.keep(&digests.keys().copied().collect::<Vec<_>>());
    let takes = |name: &str| selection.takes(name, record.has(name, digests[name]));
    let displayed: Vec<&Label> = labels.iter().filter(|label| takes(&label.exhibit)).collect();
    let done: Vec<&Exercise> = exercises.iter().filter(|exercise| takes(&exercise.name)).collect();
    if let (true, Selection::One(only)) = (displayed.is_empty() && done.is_empty(), selection) {
        let last = labels.len();
        return Err(format!(
            "{only:?} is neither an exhibit, 1 to {last}, nor an exercise in {}",
            exercises::FOLDER
        ));
    }
    let (scratch, patches) = copied(files, &labels, &exercises, &edits)?;
    if displayed.is_empty() && done.is_empty() {
        println!("{patches} patches apply, alone and together; no file of theirs changed since they passed");
        return Ok(ExitCode::SUCCESS);
    }
    let killers = || displayed.iter().map(|l| &l.killed_by).chain(done.iter().map(|e| &e.killed_by));
    let built = build::build(&scratch, killers())?;
    eprintln!("{patches} patches apply, alone and together; built after {}", seconds(start));
    let jobs: BTreeSet<&Killer> = killers().filter(|k| matches!(k, Killer::Test { .. })).collect();
    passes_alone(&built, &jobs.into_iter().collect::<Vec<_>>())?;
    let rounding = compare(&built, "")?.ok_or("without any exhibit, the example prints no losses")?;
    let code = || displayed.iter().copied().filter(|label| by_compiler(label));
    let refusals = build::refusals(&scratch, code())?;
    let seen = each(&displayed, |label| see(&built, label, &rounding, &refusals));
    let seen: Vec<ExhibitResult> = seen.into_iter().collect::<Result<_, _>>()?;
    let toured = Instant::now();
    let wrong = exercises::wrong(&built, &done, &edits)?;
    let all_killed = displayed.is_empty() || report(&seen, start);
    tell_exercises(done.len(), &wrong, toured);
    if !all_killed || !wrong.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let names = displayed.iter().map(|label| &*label.exhibit).chain(done.iter().map(|e| &*e.name));
    names.for_each(|name| record.add(name, digests[name]));
    record.write(root())?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the scratch copy of the tracked files, with every patch.
///
/// # Errors
/// One sentence for the terminal: a label that cannot be read, or a patch that does not apply.
pub(crate) fn copy() -> Result<ScratchCopy, String> {
    let files = scratch::tracked(root())?;
    let labels = read(&files, FOLDER)?;
    let exercises = read(&files, exercises::FOLDER)?;
    let edits = edits(&files, &labels, &exercises)?;
    Ok(copied(files, &labels, &exercises, &edits)?.0)
}

/// Reads the labels of all exhibits.
///
/// # Errors
/// One sentence for the terminal, if one cannot be read.
pub(crate) fn labels() -> Result<Vec<Label>, String> {
    read(&scratch::tracked(root())?, FOLDER)
}

/// Makes the scratch copy of these files, with every patch; returns it with the number of patches.
fn copied(
    files: Files,
    labels: &[Label],
    exercises: &[Exercise],
    edits: &Edits,
) -> Result<(ScratchCopy, usize), String> {
    let edits: Vec<&[Edit]> = switched(labels, exercises).map(|path| &edits[&**path][..]).collect();
    let target = target()?;
    let code = labels.iter().filter(|l| by_compiler(l)).map(|l| (build::example(l), l.path.as_ref()));
    let tree = scratch::make(files, &target.join("museum"), edits.concat(), &code.collect::<Vec<_>>())?;
    Ok((ScratchCopy { tree, target }, edits.len()))
}

/// Lists the patches that stand in the copy behind a switch.
fn switched<'a>(labels: &'a [Label], exercises: &'a [Exercise]) -> impl Iterator<Item = &'a String> {
    let of_exhibits = labels.iter().filter(|label| !by_compiler(label)).map(|label| &label.path);
    of_exhibits.chain(exercises.iter().filter_map(exercises::switched))
}

/// Prints which exercises are wrong, and how many are right.
fn tell_exercises(done: usize, wrong: &[String], toured: Instant) {
    for why in wrong {
        println!("{why}");
    }
    let right = done - wrong.len();
    println!("{right} of {done} exercises print what their chapters say, in {}", seconds(toured));
}

/// Checks that every test passes without any exhibit.
fn passes_alone(built: &ExhibitPrograms, jobs: &[&Killer]) -> Result<(), String> {
    for (killer, verdict) in jobs.iter().zip(each(jobs, |killer| judge(built, killer, ""))) {
        let why = match verdict? {
            ProofVerdict::Passed => continue,
            ProofVerdict::Killed => "fails".into(),
            ProofVerdict::Broken(why) => format!("is inconclusive: {why}"),
        };
        return Err(format!("without any exhibit, {killer} {why}"));
    }
    Ok(())
}

/// Reads the edits of every patch.
fn edits<'a>(files: &Files, labels: &'a [Label], exercises: &'a [Exercise]) -> Result<Edits<'a>, String> {
    patch::read(files, switched(labels, exercises).chain(exercises.iter().map(|exercise| &exercise.path)))
}

/// The digests of exhibits and exercises, by their names.
fn digests<'a>(
    files: (&Files, &Edits),
    labels: &'a [Label],
    exercises: &'a [Exercise],
) -> BTreeMap<&'a str, u64> {
    let exhibits = labels.iter().map(|label| (&*label.exhibit, passed::of_exhibit(files, label)));
    let of_exercise = |e: &'a Exercise| (&*e.name, passed::of_exercise(files, e, (exercises, labels)));
    exhibits.chain(exercises.iter().map(of_exercise)).collect()
}

/// True if an exhibit is code that the compiler refuses.
fn by_compiler(label: &Label) -> bool {
    matches!(label.killed_by, Killer::Compiler { .. })
}

/// Reads every label in a folder, in the order of file names.
fn read<L: DeserializeOwned>(files: &Files, folder: &str) -> Result<Vec<L>, String> {
    let has_label = |path: &Path| path.extension().is_some_and(|own| own == "patch" || own == "rs");
    let files = files.iter().filter(|(path, _)| path.starts_with(folder) && has_label(path));
    let read = |(path, text): (&PathBuf, &Vec<u8>)| {
        header::read(&path.to_string_lossy(), &String::from_utf8_lossy(text))
    };
    files.map(read).collect()
}

/// Runs one check with these exhibits on.
fn judge(built: &ExhibitPrograms, killer: &Killer, on: &str) -> Result<ProofVerdict, String> {
    let Killer::Test { test, .. } = killer else { return Ok(ProofVerdict::Passed) };
    Ok(run::verdict(&built.scratch.tree, test, &ran(built, killer, on)?))
}

/// Compares losses; `None` if the run does not get to its end.
fn compare(built: &ExhibitPrograms, on: &str) -> Result<Option<Loss>, String> {
    let ended = run::run(build::program(built.losses(), &built.scratch.tree, on), LIMIT)?;
    Ok(Loss::read(&ended.output))
}

fn see<'a>(
    built: &ExhibitPrograms,
    label: &'a Label,
    rounding: &Loss,
    refusals: &BTreeMap<String, String>,
) -> Result<ExhibitResult<'a>, String> {
    if let Killer::Compiler { says } = &label.killed_by {
        let verdict = match refusals.get(&build::example(label)) {
            None => ProofVerdict::Passed,
            Some(refusal) if refusal.contains(says) => ProofVerdict::Killed,
            Some(refusal) => ProofVerdict::Broken(format!("the compiler reports other errors:\n{refusal}")),
        };
        return Ok(ExhibitResult { label, verdict, loss: label.f32_loss.clone() });
    }
    let on = &label.exhibit;
    let verdict = judge(built, &label.killed_by, on)?;
    let loss = compare(built, on)?;
    let loss = loss.map_or_else(|| "no loss: the run fails".into(), |loss| loss.beside(rounding));
    Ok(ExhibitResult { label, verdict, loss })
}

/// Prints the table, the survivors and the totals; returns true if there is no survivor.
fn report(seen: &[ExhibitResult], start: Instant) -> bool {
    let mut rows = vec![["", "exhibit", "source", "killed by", "f32 loss"].map(str::to_owned)];
    rows.extend(seen.iter().map(|ExhibitResult { label, loss, .. }| {
        let Label { exhibit, title, source, killed_by, .. } = label;
        [exhibit.clone(), title.clone(), source.name.clone(), killed_by.to_string(), loss.clone()]
    }));
    println!("{}", aligned(&rows));
    let mut right = true;
    for ExhibitResult { label, verdict, loss } in seen {
        let why = match verdict {
            ProofVerdict::Killed if loss::agrees(&label.f32_loss, loss) => continue,
            ProofVerdict::Killed => {
                format!("its label gives the f32 loss as {:?}, the run as {loss:?}", label.f32_loss)
            }
            ProofVerdict::Passed => format!("{} passes with it", label.killed_by),
            ProofVerdict::Broken(why) => format!("{} is inconclusive: {why}", label.killed_by),
        };
        println!("exhibit {} ({}): {why}", label.exhibit, label.path);
        right = false;
    }
    let killed = |compiler: bool| {
        let of = seen.iter().filter(|seen| by_compiler(seen.label) == compiler);
        let (all, killed): (Vec<_>, Vec<_>) =
            of.map(|seen| (1, usize::from(seen.verdict == ProofVerdict::Killed))).unzip();
        (killed.iter().sum::<usize>(), all.len())
    };
    let [(by_proofs, patches), (by_compiler, code_files)] = [false, true].map(killed);
    println!(
        "{by_proofs} of {patches} patches killed by a proof, {by_compiler} of {code_files} files by the compiler, in {}",
        seconds(start)
    );
    println!("{} of {} killed", by_proofs + by_compiler, seen.len());
    right
}

/// Formats rows as lines with aligned columns.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a patch whose place or words are gone, or there twice; two patches of the same words.
    #[test]
    fn all_patches_apply() {
        let mut files = scratch::tracked(root()).unwrap();
        let labels: Vec<Label> = read(&files, FOLDER).unwrap();
        let exercises: Vec<Exercise> = read(&files, exercises::FOLDER).unwrap();
        let edits = edits(&files, &labels, &exercises).unwrap();
        let switched: Vec<_> = switched(&labels, &exercises).map(|path| &edits[&**path][..]).collect();
        assert!(switched.len() >= 140, "{} patches", switched.len());
        patch::make(&mut files, switched.concat()).unwrap();
    }
}
