//! Builds the scratch copy once: the tests that the labels name, and the example that compares losses.
use super::header::{Killer, Label};
use super::scratch::ScratchCopy;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Crate and name of the example that compares the losses of split f32 runs with an unsplit one's.
const LOSSES: [&str; 2] = ["parallel", "losses"];

/// Crates whose tests labels may name. Each call of cargo names all of them, or third-party crates would be
/// built again with other features.
const PACKAGES: [&str; 10] =
    ["tensor", "kernels", "algorithms", "comm", "reference", "ops", "layers", "moe", "parallel", "prove"];

/// Programs of a scratch copy.
pub(super) struct ExhibitPrograms<'a> {
    pub(super) scratch: &'a ScratchCopy,
    programs: BTreeMap<(String, String), PathBuf>, // by crate and target: `lib`, a file of tests, an example
}

impl ExhibitPrograms<'_> {
    /// Returns the test program of a check.
    pub(super) fn of(&self, krate: &str, target: &str) -> Result<&Path, String> {
        let program = self.programs.get(&(krate.to_owned(), target.to_owned()));
        program
            .map(PathBuf::as_path)
            .ok_or_else(|| format!("no tests `{target}` of crate `{krate}` were built"))
    }
    /// Returns the example that compares losses.
    pub(super) fn losses(&self) -> &Path {
        &self.programs[&LOSSES.map(str::to_owned).into()]
    }
}

/// Builds the tests of these checks, and the example, in the copy.
///
/// # Errors
/// If cargo cannot be started, or does not build them.
pub(super) fn build<'a, 'k>(
    scratch: &'a ScratchCopy,
    killers: impl Iterator<Item = &'k Killer>,
) -> Result<ExhibitPrograms<'a>, String> {
    let mut targets = BTreeSet::new();
    let mut programs = BTreeMap::new();
    for killer in killers {
        if let Killer::Test { target, .. } = killer {
            targets.insert(&**target);
        }
    }
    let target = |target| if target == "lib" { vec!["--lib"] } else { vec!["--test", target] };
    let targets: Vec<&str> = targets.into_iter().flat_map(target).collect();
    let mut all = vec![vec!["build", "--profile", "test", "--example", LOSSES[1]]];
    if !targets.is_empty() {
        all.push(["test", "--no-run"].into_iter().chain(targets).collect());
    }
    for arguments in all {
        let (success, messages) = cargo(scratch, &arguments)?;
        if !success {
            let errors: Vec<_> = messages.iter().filter_map(error).collect();
            return Err(format!("the scratch copy does not build:\n{}", errors.concat()));
        }
        for message in &messages {
            if let Some(program) = message["executable"].as_str() {
                let target = &message["target"];
                let [name, kind] = [&target["name"], &target["kind"][0]].map(text);
                let krate = krate(&text(&target["src_path"]), &scratch.tree);
                programs.insert((krate, if kind == "lib" { kind } else { name }), program.into());
            }
        }
    }
    Ok(ExhibitPrograms { scratch, programs })
}

/// Name of the example that an exhibit's code becomes in the copy.
pub(super) fn example(label: &Label) -> String {
    format!("exhibit_{}", label.exhibit)
}

/// Returns the compiler's errors of each of these examples that it refuses.
///
/// # Errors
/// If cargo cannot be started.
pub(super) fn refusals<'a>(
    scratch: &ScratchCopy,
    code: impl Iterator<Item = &'a Label>,
) -> Result<BTreeMap<String, String>, String> {
    let names: Vec<_> = code.map(example).collect();
    let mut refusals = BTreeMap::<String, String>::new();
    if !names.is_empty() {
        let examples = names.iter().flat_map(|name| ["--example", name]);
        let (_, messages) = cargo(
            scratch,
            &["build", "--profile", "test", "--keep-going"].into_iter().chain(examples).collect::<Vec<_>>(),
        )?;
        for message in messages {
            if let Some(error) = error(&message) {
                *refusals.entry(text(&message["target"]["name"])).or_default() += &error;
            }
        }
    }
    Ok(refusals)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Checks the copy as it is, without building, and returns the compiler's errors.
///
/// # Errors
/// If cargo cannot be started.
pub(super) fn checked(scratch: &ScratchCopy) -> Result<String, String> {
    let (_, messages) = cargo(scratch, &["check"])?;
    Ok(messages.iter().filter_map(error).collect())
}

/// Returns the text of a message, if it is a compiler error.
fn error(message: &Value) -> Option<String> {
    (message["message"]["level"] == "error").then(|| text(&message["message"]["rendered"]))
}

/// Runs cargo in the copy, in the target folder with the third-party crates. Returns true if it built
/// everything, and its messages.
fn cargo(scratch: &ScratchCopy, arguments: &[&str]) -> Result<(bool, Vec<Value>), String> {
    let mut cargo = crate::task::cargo();
    cargo.current_dir(&scratch.tree).env_remove("EXHIBIT").env("CARGO_TARGET_DIR", &scratch.target);
    cargo.args(arguments).args(["--quiet", "--locked", "--message-format=json"]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| format!("cargo cannot be started ({why})"))?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok((output.status.success(), messages))
}

/// Returns the crate in whose folder a source lies.
fn krate(source: &str, tree: &Path) -> String {
    let below = Path::new(source).strip_prefix(tree).unwrap_or(Path::new(""));
    below.iter().next().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the command that runs a program of the copy in its crate's folder, as cargo does, with these
/// exhibits on.
pub(super) fn program(program: &Path, folder: &Path, on: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("EXHIBIT", on).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}
