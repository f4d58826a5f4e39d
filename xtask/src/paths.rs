//! `cargo xtask paths`: every command with every entry of every list, where `cargo test` draws some.
use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The test, and the variable with what the names of its cases must contain.
const TEST: &str = "test --workspace --test all every_command_takes_every_entry_or_refuses_it -- --nocapture";
const ONLY: &str = "EQUIPART_PATHS";

/// Runs all cases that have `only` in their name from the repository's root, and shows their table; fails if one is wrong.
pub(crate) fn run(only: &str) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    match command.args(TEST.split(' ')).env(ONLY, only).env("RUST_BACKTRACE", "0").current_dir(root).status()
    {
        Ok(status) => crate::ci::code(status),
        Err(why) => {
            eprintln!("paths cannot start `cargo {TEST}`: {why}.");
            ExitCode::FAILURE
        }
    }
}
