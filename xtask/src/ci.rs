//! `cargo xtask ci`: the steps, in order, each timed; the first that fails ends the run with its exit code.
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{ptx, readme, times};

/// One command of the run. All but the tests are quiet, so that the tests' last lines stay in sight.
struct Step {
    environment: Option<(&'static str, &'static str)>,
    command: Vec<String>,
}

/// What a step took.
struct Took {
    time: Duration,
    cpu: Option<f64>,
}

impl Took {
    fn since(start: Instant, cpu: Option<f64>) -> Self {
        let cpu = times::children().zip(cpu).map(|(now, before)| now - before);
        Self { time: start.elapsed(), cpu }
    }
}

impl std::fmt::Display for Took {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu.map_or_else(String::new, |cpu| format!(" ({cpu:.1} s of CPU)"));
        write!(to, "{}{cpu}", seconds(self.time))
    }
}

/// The step that is no command.
const EDITED_LAYER: &str = "one edited layer";

/// Runs every step from the repository's root.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let has_mdbook = has_mdbook();
    let steps = match steps(root, has_mdbook) {
        Ok(steps) => steps,
        Err(why) => {
            eprintln!("ci cannot start: {why}.");
            return ExitCode::FAILURE;
        }
    };
    let (mut done, skips) =
        (Vec::new(), env::temp_dir().join(format!("equipart-skipped-{}", std::process::id())));
    for (at, step) in steps.iter().enumerate() {
        let place = format!("[{}/{}]", at + 1, steps.len());
        println!("{place} {step}");
        let (start, cpu) = (Instant::now(), times::children());
        match step.status(root, &skips) {
            Ok(status) if status.success() => done.push(Took::since(start, cpu)),
            Ok(status) => {
                eprintln!("{place} failed after {}, {status}: {step}", seconds(start.elapsed()));
                return code(status);
            }
            Err(why) => {
                eprintln!("{place} cannot start `{}`: {why}.", step.command[0]);
                return ExitCode::FAILURE;
            }
        }
        println!("{place} passed in {}\n", done[at]);
    }
    println!("ci passed in {}:", seconds(done.iter().map(|took| took.time).sum()));
    for (step, took) in steps.iter().zip(done) {
        println!("{:>28}  {step}", took.to_string());
    }
    let mut skipped = skipped(&fs::read_to_string(&skips).unwrap_or_default());
    drop(fs::remove_file(skips));
    if !ptx::has_compiler() {
        skipped.push("ptx --check: nvcc is not installed".into());
    }
    if !has_mdbook {
        skipped.push("mdbook build docs: mdbook is not installed (`cargo install mdbook`)".into());
    }
    for what in &skipped {
        println!("{:>28}  {what}", "skipped");
    }
    ExitCode::SUCCESS
}

/// Lists what tests skipped, each reason once: a test may repeat it.
fn skipped(said: &str) -> Vec<String> {
    let all: BTreeSet<_> = said.lines().map(|line| line.trim_start_matches("skipped: ").to_owned()).collect();
    all.into_iter().collect()
}

fn steps(root: &Path, with_book: bool) -> Result<Vec<Step>, String> {
    let readme = fs::read_to_string(root.join("README.md"))
        .map_err(|why| format!("README.md cannot be read ({why})"))?;
    let tests = readme::test_command(&readme)?;
    let build = tests.iter().cloned().chain(["--no-run".into()]).collect();
    let mut steps = vec![
        Step { environment: None, command: build },
        Step { environment: None, command: tests },
        Step::new(EDITED_LAYER),
        Step::new("cargo run --quiet --package xtask -- mutants"), // built by then; for its table
        Step {
            environment: Some(("RUSTFLAGS", "--cfg loom")),
            ..Step::new("cargo test --quiet --profile models --package comm --lib models::")
        },
        Step::new("cargo test --quiet --package xtask"),
        Step::new("cargo xtask museum"),
        Step::new("cargo fmt --check --all"),
        Step::new(&listed_files(root)?),
        Step::new("cargo clippy --quiet --workspace --all-targets -- -D warnings"),
        Step {
            environment: Some(("RUSTDOCFLAGS", "-D warnings")),
            ..Step::new("cargo doc --quiet --workspace --no-deps --features comm/mutants,layers/proof")
        },
    ];
    steps.extend(ptx::has_compiler().then(|| Step::new("cargo run --quiet --package xtask -- ptx --check")));
    steps.extend(with_book.then(|| Step::new("mdbook build docs")));
    Ok(steps)
}

/// Formatting of the files that lists declare, where `cargo fmt` does not find them.
fn listed_files(root: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    let families =
        ["tensor", "dealing", "attention", "data", "pipeline"].map(|of| format!("parallel/src/{of}"));
    for folder in families.into_iter().chain(["equipart/src/commands".to_owned()]) {
        let entries =
            fs::read_dir(root.join(&folder)).map_err(|why| format!("{folder} cannot be read ({why})"))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let sources = paths.filter(|path| path.extension().is_some_and(|end| end == "rs"));
        files.extend(sources.filter_map(|path| Some(format!("{folder}/{}", path.file_name()?.to_str()?))));
    }
    files.sort();
    Ok(format!("rustfmt --check --edition 2024 {}", files.join(" ")))
}

fn has_mdbook() -> bool {
    let found = Command::new("mdbook").arg("--version").stdout(Stdio::null()).status();
    !matches!(found, Err(why) if why.kind() == ErrorKind::NotFound)
}

impl Step {
    fn new(command: &str) -> Self {
        Self { environment: None, command: command.split(' ').map(str::to_owned).collect() }
    }

    /// Runs it; tests write to `skips` what they skip.
    fn status(&self, root: &Path, skips: &Path) -> std::io::Result<ExitStatus> {
        if self.command.join(" ") == EDITED_LAYER {
            return times::edited_layer(root);
        }
        let program = match &*self.command[0] {
            "cargo" => env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            other => other.into(),
        };
        let mut command = Command::new(program);
        command.args(&self.command[1..]).envs(self.environment).env("EQUIPART_SKIPPED", skips);
        command.current_dir(root).status()
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((name, value)) = self.environment {
            write!(to, "{name}=\"{value}\" ")?;
        }
        to.write_str(&self.command.join(" "))
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The exit code of a child that failed; 1 if it ended by a signal.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step whose test is skipped twice. Kills: a skip that is not listed, one listed as often as it is said, a step that is not
    /// told where to say it.
    #[test]
    fn what_steps_skip_is_listed_once() {
        let skips = env::temp_dir().join(format!("equipart-skipped-test-{}", std::process::id()));
        let say = "for i in b a b; do echo \"skipped: $i: no compiler\" >> \"$EQUIPART_SKIPPED\"; done";
        let step = Step { environment: None, command: ["sh", "-c", say].map(str::to_owned).into() };
        assert!(step.status(Path::new("."), &skips).unwrap().success());
        let said = fs::read_to_string(&skips).unwrap();
        fs::remove_file(skips).unwrap();
        assert_eq!(skipped(&said), ["a: no compiler", "b: no compiler"]);
    }
}
