//! `cargo xtask course bug`: the last exercise of the course. A trainer has a bug of a real system; the
//! reader finds the first wrong tensor by `diff`, and then the file.
use crate::museum::scratch::{self, ScratchCopy};
use crate::museum::{copy, labels, patch};
use crate::task::{TaskResult, cargo, root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Exhibits that a step of the embedded model shows, each with a layout that does.
const BUGS: [(usize, &str); 12] = [
    (24, "dp=2"),
    (7, "tp=2,sp"),
    (17, "tp=2"),
    (35, "tp=4"),
    (15, "tp=2"),
    (60, "pp=2"),
    (28, "tp=2,sp"),
    (11, "tp=4"),
    (61, "pp=2"),
    (38, "tp=2"),
    (6, "tp=2"),
    (8, "tp=2,sp"),
];

/// Layouts that a reader tries.
const LAYOUTS: &str = "tp=2, tp=4, tp=2,sp, dp=2 and pp=2";

/// Flags of the step that is compared.
const STEP: [&str; 8] =
    ["train", "--steps", "1", "--seq=16", "--batch-size=4", "--microbatches=2", "--model", "embedded"];

/// Builds the trainer with a bug, the one of this number or a drawn one, and says what to do.
pub(crate) fn trainer(number: Option<&str>) -> TaskResult {
    let number = match number {
        None => {
            1 + SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as usize)
                % BUGS.len()
        }
        Some(word) => match bug(word) {
            Ok((number, _)) => number,
            Err(why) => return Ok(refuse(&why)),
        },
    };
    let scratch = copy()?;
    let folder = scratch.target.join("course");
    let program = build(&scratch, &folder)?;
    let script = folder.join(format!("trainer-{number}"));
    // The number is not told in plain sight, since finding it is the exercise: 29 · 7 is 1 modulo 101.
    let hidden = BUGS[number - 1].0 * 29 % 101;
    let text = format!("#!/bin/sh\nEXHIBIT=$(({hidden} * 7 % 101)) exec \"{}\" \"$@\"\n", program.display());
    fs::write(&script, text).map_err(|why| format!("{} cannot be written ({why})", script.display()))?;
    executable(&script)?;
    let step = STEP.join(" ");
    println!(
        "\nTrainer {number} has a bug that a real system shipped. An unsplit step is right; a step under one or more\n\
         of {LAYOUTS} is wrong. Find the first wrong tensor, then the file.\n\n\
         \x20 alias trainer={}\n\
         \x20 trainer {step} --dump whole\n\
         \x20 trainer {step} --dump exact --dtype f64\n\
         \x20 trainer {step} --dump split --layout dp=2\n\
         \x20 trainer diff whole split --truth exact\n\n\
         The code to read is the repository's, which has no bug: where could it be wrong so? Your answer, a file:\n\n\
         \x20 cargo xtask course bug {number} layers/src/linear/column.rs",
        script.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Judges an answer: right if the bug's patch changes the file.
pub(crate) fn answer(number: &str, file: &str) -> TaskResult {
    let (number, (exhibit, layout)) = match bug(number) {
        Ok(bug) => bug,
        Err(why) => return Ok(refuse(&why)),
    };
    let file = file.trim_start_matches("./");
    if !root().join(file).is_file() {
        return Ok(refuse(&format!(
            "{file:?} is no file of the repository; wanted a path such as layers/src/linear/column.rs."
        )));
    }
    let labels = labels()?;
    let label =
        labels.iter().find(|label| label.exhibit == exhibit.to_string()).ok_or("the exhibit is missing.")?;
    let files = scratch::tracked(root())?;
    let edits = patch::read(&files, [&label.path].into_iter())?;
    if !edits.values().flatten().any(|edit| edit.file == Path::new(file)) {
        println!(
            "Trainer {number} is right in {file}. Look at the tensor before the first wrong one, and at who sums what."
        );
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "Right: {}. Seen under {layout}.\n{}: {}\n{} makes it; the museum's exhibit {exhibit} says which proof rejects it.",
        label.title, label.source.name, label.source.reported, label.path
    );
    Ok(ExitCode::SUCCESS)
}

/// Checks that `diff` finds each bug under its layout, and none without.
pub(crate) fn check() -> TaskResult {
    let scratch = &copy()?;
    let folder = scratch.target.join("course");
    let program = build(scratch, &folder)?;
    let run = |on: &str, arguments: &[&str]| {
        let mut command = Command::new(&program);
        let quiet = command.args(arguments).current_dir(&folder).env("EXHIBIT", on).stdout(Stdio::null());
        let status = quiet.stderr(Stdio::null()).status();
        status.map_err(|why| format!("{} cannot be started ({why})", program.display())).map(|s| s.code())
    };
    let step = |on: &str, more: &[&str]| match run(on, &[&STEP[..], more].concat())? {
        Some(0) => Ok(()),
        _ => Err(format!("a step with {more:?} fails under exhibit {on}")),
    };
    step("", &["--dump=exact", "--dtype=f64"])?;
    for (exhibit, layout) in BUGS {
        let on = exhibit.to_string();
        step(&on, &["--dump=whole"])?;
        step(&on, &["--dump=split", "--layout", layout])?;
        let [unsplit, split] = ["whole", "split"].map(|b| run("", &["diff", "whole", b, "--truth", "exact"]));
        if (unsplit?, split?) != (Some(0), Some(1)) {
            return Err(format!(
                "`diff` does not find exhibit {exhibit} under {layout}, or finds one without a layout"
            ));
        }
    }
    println!("`diff` finds the {} bugs of the course", BUGS.len());
    Ok(ExitCode::SUCCESS)
}

/// Says what is wrong with the input, with exit code 2.
fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

/// The number of a bug, from 1, and the bug.
fn bug(word: &str) -> Result<(usize, (usize, &'static str)), String> {
    let number = word.parse::<usize>().ok().filter(|number| (1..=BUGS.len()).contains(number));
    let number =
        number.ok_or_else(|| format!("{word:?} is no bug of the course; wanted 1 to {}.", BUGS.len()))?;
    Ok((number, BUGS[number - 1]))
}

/// Builds the program in the copy, and returns its path in the folder.
fn build(scratch: &ScratchCopy, folder: &Path) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--profile", "test", "--package", "equipart"]).current_dir(&scratch.tree);
    let status = command.env("CARGO_TARGET_DIR", &scratch.target).status();
    if !status.map_err(|why| format!("cargo cannot be started ({why})"))?.success() {
        return Err("the trainer cannot be built".into());
    }
    fs::create_dir_all(folder).map_err(|why| format!("{} cannot be made ({why})", folder.display()))?;
    let built = scratch.target.join("debug/equipart");
    let program = folder.join("equipart");
    fs::copy(&built, &program).map_err(|why| format!("{} cannot be copied ({why})", built.display()))?;
    Ok(program)
}

#[cfg(unix)]
fn executable(script: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755))
        .map_err(|why| format!("{} cannot be made executable ({why})", script.display()))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<(), String> {
    Ok(())
}
