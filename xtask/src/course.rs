//! `cargo xtask course`: the exercises of the course, judged by the crate `exercises`.
use crate::{TaskResult, cargo, code};

/// Lists the exercises with what is solved, or judges the one that is named.
pub(crate) fn run(names: &[&str]) -> TaskResult {
    let judge = cargo().args(["run", "--package", "exercises", "--"]).args(names).status();
    judge.map(code).map_err(|why| format!("cargo cannot be started ({why})."))
}
