//! `cargo xtask ci`: the steps, in order, each timed; the first that fails ends the run with its exit code.
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::task::{TaskResult, cargo, code, root};
use crate::{mpi, ptx, python, readme, times};

/// One command of the run. All but the tests are quiet, so that the tests' last lines stay in sight.
struct CiStep {
    environment: Option<(&'static str, &'static str)>,
    command: Vec<String>,
}

/// Runs every step from the repository's root.
pub(crate) fn run() -> TaskResult {
    let has_mdbook = has_mdbook();
    let steps = steps(has_mdbook).map_err(|why| format!("ci cannot start: {why}."))?;
    let mut done = Vec::new();
    let mut total = Duration::ZERO;
    let skips = env::temp_dir().join(format!("equipart-skipped-{}", std::process::id()));
    for (at, step) in steps.iter().enumerate() {
        let place = format!("[{}/{}]", at + 1, steps.len());
        println!("{place} {step}");
        let start = Instant::now();
        let before = times::children();
        let cannot = |why| format!("{place} cannot start `{}`: {why}.", step.command[0]);
        let status = step.status(&skips).map_err(cannot)?;
        let time = start.elapsed();
        if !status.success() {
            eprintln!("{place} failed after {}, {status}: {step}", seconds(time));
            return Ok(code(status));
        }
        let cpu =
            times::children().zip(before).map(|(now, before)| format!(" ({:.1} s of CPU)", now - before));
        let took = seconds(time) + &cpu.unwrap_or_default();
        println!("{place} passed in {took}\n");
        done.push(took);
        total += time;
    }
    println!("ci passed in {}:", seconds(total));
    for (step, took) in steps.iter().zip(done) {
        println!("{took:>28}  {step}");
    }
    let mut skipped = skipped(&fs::read_to_string(&skips).unwrap_or_default());
    drop(fs::remove_file(skips));
    if !ptx::has_compiler() {
        skipped.push("ptx --check: nvcc is not installed".into());
    }
    skipped.extend(mpi::missing());
    skipped.extend(python::missing());
    if !has_mdbook {
        skipped.push("mdbook build docs: mdbook is not installed (`cargo install mdbook`)".into());
    }
    for what in &skipped {
        println!("{:>28}  {what}", "skipped");
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists what tests skipped, each reason once: a test may repeat it.
fn skipped(said: &str) -> Vec<String> {
    let all: BTreeSet<_> = said.lines().map(|line| line.trim_start_matches("skipped: ").to_owned()).collect();
    all.into_iter().collect()
}

fn steps(with_book: bool) -> Result<Vec<CiStep>, String> {
    let readme = fs::read_to_string(root().join("README.md"))
        .map_err(|why| format!("README.md cannot be read ({why})"))?;
    let tests = readme::test_command(&readme)?;
    let mut steps = vec![
        CiStep { environment: None, command: tests.iter().cloned().chain(["--no-run".into()]).collect() },
        CiStep { environment: None, command: tests },
        CiStep::new("cargo fmt --check --all"),
        CiStep::new(&listed_files()?),
        CiStep {
            environment: Some(("RUSTFLAGS", "--cfg loom")),
            ..CiStep::new("cargo test --quiet --profile models --package comm --lib models::")
        },
        CiStep::new("cargo test --quiet --package xtask"),
        CiStep::new("cargo xtask museum --changed"),
        CiStep::new("cargo clippy --quiet --workspace --all-targets -- -D warnings"),
        CiStep {
            environment: Some(("RUSTDOCFLAGS", "-D warnings")),
            ..CiStep::new("cargo doc --quiet --workspace --no-deps --features comm/mutants,layers/proof")
        },
    ];
    let optional = [
        (ptx::has_compiler(), "cargo run --quiet --package xtask -- ptx --check"),
        (mpi::missing().is_none(), "cargo run --quiet --package xtask -- mpi --part"),
        (python::missing().is_none(), "cargo run --quiet --package xtask -- python"),
        (with_book, "mdbook build docs"),
    ];
    steps.extend(optional.iter().filter(|(has, _)| *has).map(|(_, command)| CiStep::new(command)));
    Ok(steps)
}

/// Returns the command that checks the format of the files that lists declare: `cargo fmt` does not find
/// them.
fn listed_files() -> Result<String, String> {
    let mut files = Vec::new();
    let families = ["tensor", "dealing", "attention", "data", "offload", "pipeline"]
        .map(|of| format!("parallel/src/{of}"));
    for folder in families.into_iter().chain(["equipart/src/commands".to_owned()]) {
        let entries =
            fs::read_dir(root().join(&folder)).map_err(|why| format!("{folder} cannot be read ({why})"))?;
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

impl CiStep {
    fn new(command: &str) -> Self {
        Self { environment: None, command: command.split(' ').map(str::to_owned).collect() }
    }

    /// Runs the step; tests write to `skips` what they skip.
    fn status(&self, skips: &Path) -> std::io::Result<ExitStatus> {
        let mut command = if self.command[0] == "cargo" { cargo() } else { Command::new(&self.command[0]) };
        command.args(&self.command[1..]).envs(self.environment).env("EQUIPART_SKIPPED", skips);
        command.current_dir(root()).status()
    }
}

impl std::fmt::Display for CiStep {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a step whose test is skipped twice. Kills: a skip that is not listed, a skip listed once for each
    /// report, a step without the file to report it in.
    #[test]
    fn what_steps_skip_is_listed_once() {
        let skips = env::temp_dir().join(format!("equipart-skipped-test-{}", std::process::id()));
        let say = "for i in b a b; do echo \"skipped: $i: no compiler\" >> \"$EQUIPART_SKIPPED\"; done";
        let step = CiStep { environment: None, command: ["sh", "-c", say].map(str::to_owned).into() };
        assert!(step.status(&skips).unwrap().success());
        let said = fs::read_to_string(&skips).unwrap();
        fs::remove_file(skips).unwrap();
        assert_eq!(skipped(&said), ["a: no compiler", "b: no compiler"]);
    }
}
