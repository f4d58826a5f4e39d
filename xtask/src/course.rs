//! `cargo xtask course`: the exercises of the course, judged by the crate `exercises`; the last one
//! by the museum.
pub(crate) mod planted;

use crate::task::{TaskResult, cargo, code};

/// Lists the exercises with what is solved, or judges the one that is named, or an answer to the last.
pub(crate) fn run(names: &[&str]) -> TaskResult {
    match names {
        ["bugs"] => return planted::check(),
        ["bug"] => return planted::trainer(None),
        ["bug", number] => return planted::trainer(Some(number)),
        ["bug", number, file] => return planted::answer(number, file),
        _ => {}
    }
    let judge =
        cargo().args(["run", "--package", "exercises", "--example", "course", "--"]).args(names).status();
    judge.map(code).map_err(|why| format!("cargo cannot be started ({why})."))
}
