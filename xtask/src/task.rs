//! The result of a task, the repository's root, and the cargo that runs there.
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

/// Exit code of a task, or the reason why it could not run to its end.
pub(crate) type TaskResult = Result<ExitCode, String>;

pub(crate) fn refuse(what: &str) -> ExitCode {
    eprintln!("{what}: `cargo xtask --help` lists the tasks.");
    ExitCode::from(2)
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Returns the cargo that runs this program, to be started in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Returns the exit code of a child; 1 if a signal ended it.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
