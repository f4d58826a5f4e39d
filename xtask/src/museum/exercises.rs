//! Exercises of the book: edits that a chapter asks its reader to make, each a patch in `docs/break/`. A
//! label names the check that fails and quotes its output; `docs/tests/all/exercises.rs` checks that the
//! chapter says the same.
use super::build::{self, ExhibitPrograms};
use super::header::{Exercise, Killer};
use super::patch::{self, Edit, Edits};
use super::run::{Ended, each, ran};
use super::scratch::{self, ScratchCopy};
use std::fs::{self, File};

/// The folder of the patches.
pub(super) const FOLDER: &str = "docs/break";

/// Returns the patch of an exercise that runs: it is applied behind a switch, beside all others.
pub(super) fn switched(exercise: &Exercise) -> Option<&String> {
    let runs = matches!(exercise.killed_by, Killer::Test { .. }) && exercise.same_as.is_none();
    runs.then_some(&exercise.path)
}

/// Runs the exercises; returns one sentence for each that does not end as it should.
///
/// # Errors
/// If a program cannot be started, or a file not written.
pub(super) fn wrong(
    built: &ExhibitPrograms,
    all: &[&Exercise],
    edits: &Edits,
) -> Result<Vec<String>, String> {
    let (tests, refused): (Vec<&Exercise>, Vec<_>) =
        all.iter().partition(|exercise| matches!(exercise.killed_by, Killer::Test { .. }));
    let judged = each(&tests, |exercise| {
        let own = exercise.same_as.as_ref().unwrap_or(&exercise.name).clone();
        let on = exercise.beside.iter().fold(own, |on, before| format!("{on} {before}"));
        Ok::<_, String>(missing(exercise, &ran(built, &exercise.killed_by, &on)?))
    });
    let mut wrong = judged.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
    for exercise in refused {
        wrong.extend(accepted(built.scratch, exercise, &edits[&*exercise.path])?);
    }
    Ok(wrong)
}

/// Returns why the end of a test is not what the label says, or `None` if it is.
fn missing(exercise: &Exercise, Ended { status, output }: &Ended) -> Option<String> {
    let Exercise { path, killed_by: killer, .. } = exercise;
    if status.is_none_or(|status| status.success()) {
        return Some(format!(
            "{path}: {killer} {}",
            if status.is_none() { "does not end" } else { "passes" }
        ));
    }
    let mut rest = &output[..];
    for part in exercise.parts() {
        let Some((_, after)) = rest.split_once(part) else {
            let last: Vec<_> = output.lines().rev().filter(|line| !line.trim().is_empty()).take(12).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            return Some(format!("{path}: {killer} does not print {part:?}, but:\n{}", last.join("\n")));
        };
        rest = after;
    }
    None
}

/// Returns why the compiler does not refuse what it should, or `None` if it does. Restores the copy, its
/// files' times too.
fn accepted(
    scratch: &ScratchCopy,
    Exercise { path, killed_by, .. }: &Exercise,
    edits: &[Edit],
) -> Result<Option<String>, String> {
    let Killer::Compiler { says } = killed_by else { return Ok(None) };
    let cannot = |why: std::io::Error| format!("{path} cannot be tried ({why})");
    let file = &edits.first().ok_or_else(|| format!("{path} changes no file"))?.file;
    let mut files = scratch::tracked(crate::task::root())?; // without other patches
    patch::make(&mut files, edits.to_vec())?;
    let at = scratch.tree.join(file);
    let before = fs::read(&at).map_err(cannot)?;
    let time = fs::metadata(&at).and_then(|of| of.modified());
    fs::write(&at, &files[file]).map_err(cannot)?;
    let output = build::checked(scratch);
    fs::write(&at, before).map_err(cannot)?;
    File::options().write(true).open(&at).and_then(|at| at.set_modified(time?)).map_err(cannot)?;
    let output = output?;
    let right = output.contains(says) && output.contains(&format!("--> {}:", file.display()));
    let file = file.display();
    Ok((!right).then(|| format!("{path}: the compiler does not report {says} in {file}, but:\n{output}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::museum::header;
    use crate::museum::run::run;
    use std::process::Command;
    use std::time::Duration;

    /// Kills: an exercise that no test detects, an output printed in another order, an output printed by
    /// another test.
    #[test]
    fn what_an_exercise_does_not_print_is_said() {
        let text = "Killed by: layers lib x\nSays: Y … 3 of 4 differ\n";
        let exercise = header::read("docs/break/a-1.patch", text).unwrap();
        let why = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            missing(&exercise, &run(command, Duration::from_secs(20)).unwrap())
        };
        assert_eq!(why("echo Y, rank 0 of 2: 3 of 4 differ; exit 101"), None);
        let passes = why("echo Y: 3 of 4 differ").unwrap();
        assert!(passes.ends_with("layers::x passes"), "{passes}");
        let other = why("echo 3 of 4 differ, Y; exit 101").unwrap();
        assert!(other.contains("does not print \"3 of 4 differ\", but:"), "{other}");
    }
}
