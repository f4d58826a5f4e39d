//! The project's own tasks: `cargo xtask ci` is what must pass before a change lands, here and on any machine.
//! `cargo xtask museum` is a part of it.
mod ci;
mod museum;
mod readme;

use std::env;
use std::process::ExitCode;

const HELP: &str = "\
The project's own tasks.

Usage: cargo xtask <task>

Tasks:
  ci                 the README's test command, then models of how ranks meet, formatting, lints, API
                     documentation, the museum and the book; stops at the first step that fails, with
                     that step's exit code
  museum [--only N]  puts bugs that real systems shipped into a scratch copy, one at a time, and runs the
                     proof that must reject each; exits with 1 if one survives, and names it
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => ci::run(),
        ["museum"] => museum::run(None),
        ["museum", "--only", number] => match number.parse() {
            Ok(number) => museum::run(Some(number)),
            Err(_) => refuse(&format!("--only is {number:?}; it must be the number of an exhibit")),
        },
        ["-h" | "--help" | "help"] | ["ci" | "museum", "-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [] => refuse("No task is named"),
        ["ci", ..] => refuse("The task `ci` takes no arguments"),
        ["museum", ..] => refuse("The task `museum` takes nothing but `--only N`"),
        [task, ..] => refuse(&format!("There is no task `{task}`")),
    }
}

fn refuse(what: &str) -> ExitCode {
    eprintln!("{what}: `cargo xtask --help` lists the tasks.");
    ExitCode::from(2)
}
