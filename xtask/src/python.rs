//! `cargo xtask python`: builds the field for Python and runs the tests of `python/`, if Python, PyTorch and
//! pytest are installed.
use crate::task::{TaskResult, cargo, code, root};
use std::fs;
use std::process::{Command, ExitCode, Stdio};

/// Program that fails where the tests cannot run.
const NEEDED: &str = "import sys; assert sys.version_info >= (3, 11); import numpy, pytest, torch";
/// Place of the built library for tests; `pip install ./python` puts it beside the installed package.
const LIBRARY: &str = "python/equipart/_field.abi3.so";

/// Returns why the task cannot run here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    let mut python = Command::new("python3");
    let found = python.args(["-c", NEEDED]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    (!found).then(|| "python: Python 3.11 or newer with PyTorch and pytest is not installed".into())
}

/// Builds the library and runs the tests.
pub(crate) fn run() -> TaskResult {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    let built = cargo().args(["build", "--quiet", "--release", "--package", "equipart-python"]).status();
    let built = built.map_err(|why| format!("cargo cannot start: {why}"))?;
    if !built.success() {
        return Ok(code(built));
    }
    let library = root().join("target/release").join(library_name());
    fs::copy(&library, root().join(LIBRARY)).map_err(|why| format!("{}: {why}", library.display()))?;
    let attacks = "python/tests/test_attacks.py";
    let started: Vec<_> = [vec![attacks.into()], vec!["python/tests".into(), format!("--ignore={attacks}")]]
        .into_iter()
        .map(|of| tests(&of).spawn().map_err(|why| format!("python3 cannot start: {why}")))
        .collect();
    let mut worst = ExitCode::SUCCESS;
    for tests in started {
        let status = tests?.wait().map_err(|why| format!("pytest: {why}"))?;
        if !status.success() {
            worst = code(status);
        }
    }
    Ok(worst)
}

/// Returns a run of tests.
fn tests(of: &[String]) -> Command {
    let mut tests = Command::new("python3");
    tests.args(["-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider"]);
    tests.args(of);
    tests.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1").current_dir(root());
    tests
}

fn library_name() -> String {
    format!("{}_field{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}
