//! What is built of the scratch copy, once: the tests that the labels name, and the example that compares losses.
use super::Scratch;
use super::header::Killer;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compares the losses of split f32 runs with those of an unsplit one.
const LOSSES: [&str; 2] = ["equipart", "losses"];

/// The crates whose tests labels may name. All are asked for in every call, or the crates of others would be built again
/// with other features.
const PACKAGES: [&str; 5] = ["tensor", "kernels", "layers", "parallel", "equipart"];

/// Programs by crate and target: `lib`, a file of tests, or an example.
pub(super) struct Built(BTreeMap<(String, String), PathBuf>);

impl Built {
    /// The test program of a check.
    pub(super) fn of(&self, krate: &str, target: &str) -> Result<&Path, String> {
        let program = self.0.get(&(krate.to_owned(), target.to_owned()));
        program
            .map(PathBuf::as_path)
            .ok_or_else(|| format!("no tests `{target}` of crate `{krate}` were built"))
    }
    /// The example that compares losses.
    pub(super) fn losses(&self) -> &Path {
        &self.0[&LOSSES.map(str::to_owned).into()]
    }
}

/// Builds the tests of these checks, and the example, in the copy.
///
/// # Errors
/// If cargo cannot be started, or does not build them.
pub(super) fn build<'a>(
    scratch: &Scratch,
    killers: impl Iterator<Item = &'a Killer>,
) -> Result<Built, String> {
    let (mut targets, mut built) = (BTreeSet::new(), BTreeMap::new());
    for killer in killers {
        if let Killer::Test { target, .. } = killer {
            targets.insert(&**target);
        }
    }
    let target = |target| if target == "lib" { vec!["--lib"] } else { vec!["--test", target] };
    let targets: Vec<&str> = targets.into_iter().flat_map(target).collect();
    if !targets.is_empty() {
        cargo(scratch, ["test", "--no-run"].into_iter().chain(targets), &mut built)?;
    }
    let losses = ["build", "--profile", "test", "--example", LOSSES[1]];
    cargo(scratch, losses.into_iter(), &mut built)?;
    Ok(Built(built))
}

/// Runs cargo in the copy, with the target folder that holds the crates of others, and notes what it built.
fn cargo<'a>(
    scratch: &Scratch,
    arguments: impl Iterator<Item = &'a str>,
    built: &mut BTreeMap<(String, String), PathBuf>,
) -> Result<(), String> {
    let mut cargo = scratch.cargo();
    cargo.args(arguments).args(["--quiet", "--locked", "--message-format=json"]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    // Our own crates are built in half the time, and their proofs are still fast; those of others are there already.
    cargo.args([
        "--config",
        "profile.test.opt-level=1",
        "--config",
        "profile.test.package.\"*\".opt-level=3",
    ]);
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| format!("cargo cannot be started ({why})"))?;
    let mut rendered = String::new();
    for message in String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (target, level) = (&message["target"], &message["message"]["level"]);
        if let Some(program) = message["executable"].as_str() {
            let (name, kind) = (text(&target["name"]), text(&target["kind"][0]));
            let krate =
                if kind == "lib" { name.clone() } else { krate(&text(&target["src_path"]), &scratch.tree) };
            built.insert((krate, if kind == "lib" { kind } else { name }), program.into());
        } else if level == "error" {
            rendered += &text(&message["message"]["rendered"]);
        }
    }
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("the scratch copy does not build:\n{rendered}"))
    }
}

/// The crate in whose folder a source lies.
fn krate(source: &str, tree: &Path) -> String {
    let below = Path::new(source).strip_prefix(tree).unwrap_or(Path::new(""));
    below.iter().next().unwrap_or_default().to_string_lossy().into_owned()
}

/// A program in the copy, run in its crate's folder as cargo would, with one exhibit on or none.
pub(super) fn program(program: &Path, folder: &Path, exhibit: Option<usize>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_remove("EXHIBIT").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    if let Some(number) = exhibit {
        command.env("EXHIBIT", number.to_string());
    }
    command
}
