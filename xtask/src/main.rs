//! The project's own tasks. `cargo xtask ci` must pass before a change lands, here and on any machine. Parts
//! of it: `cargo xtask mutants` shows that the proofs notice faults between ranks, `cargo xtask museum` that
//! they reject bugs that real systems shipped.

// Ground: the result of a task, the repository's root, cargo.
mod task;

// Tasks on one thing each; `ci` runs some of them.
mod gpu;
mod long;
mod mpi;
mod ptx;
mod python;
mod readme;
mod times;

// The museum: bugs of real systems in a scratch copy.
mod museum;

// Tasks made of these.
mod ci;
mod course;
mod mutants;

use museum::Selection;
use std::env;
use std::process::ExitCode;
use task::{TaskResult, refuse};

const HELP: &str = "\
The project's own tasks.

Usage: cargo xtask <task>

Tasks:
  ci                 runs all that must pass: the README's test command (built first, then run), formatting,
                     models of how ranks meet, `museum --changed`, lints, API documentation, the PTX and the
                     book. Stops at the first step that fails, with that step's exit code; ends with a list of
                     skipped steps and the reasons
  release            runs `ci`, all of `museum`, the bugs of `course`, `mutants`, `sanitize` and `edit`: before a release
  course [NAME]      lists the exercises of the course with what is solved, or judges one, such as `dot`: right, or
                     what differs on which rank; exits with 1 unless it is solved
  course bug [N]     builds a trainer with a bug of a real system, the Nth of twelve or a drawn one, and says how to
                     find it; with a file as well, such as `bug 3 layers/src/norm.rs`, says if the bug is there
  course bugs        checks that `diff` finds each of the twelve
  edit               edits one layer, and prints what its proof takes then, with the build
  mutants            runs the proofs with one call between ranks gone wrong, in every layer and in drawn layouts,
                     and the planner's tests with each bug of plan/mutants.txt; prints a table of what was
                     noticed; fails if something was not
  paths [--only T]   runs every command with every layout, kind of model, dtype and optimizer; takes most of an
                     hour; prints a table of what ran and what was refused; fails if a result is wrong
                     (`cargo test` draws a part). With T, runs only cases with T in their name, such as
                     `Dense under tp=2`
  frames [--only N]  changes a part of what a rank sends to another process, ten thousand times or N times
  faults [--only N]  kills, stops and ends ranks at drawn calls, ten thousand times among threads and a thousand
                     times among processes, or N times and a tenth of N
  mpi                builds the program with MPI as the carrier, with each MPI that is installed, and runs all
                     layouts under its launcher, on two, three and four ranks (`ci`: the first MPI, and fewer)
  python             builds the field of proofs for Python and runs the tests of python/, if PyTorch is installed
  stops [--only N]   stops processes while they train, and lets them go on, two hundred times or N times
  kills [--only N]   kills runs while they train and save, and lets them go on, a thousand times or N times
  sanitize           runs the checks of all CUDA kernels on the host under AddressSanitizer
  museum [--only N]  puts bugs that real systems shipped into a scratch copy, one at a time, and runs the
                     proof that must reject each; exits with 1 if one survives, and names it. Then runs the
                     exercises of the book, which must print what their chapters quote. N is the number of an
                     exhibit or the name of an exercise, such as 14 or heads-1. Those that pass are recorded
                     in museum/passed.txt
  museum --changed   runs those whose patch, patched files or test changed since the record
  ptx [--check]      compiles the kernels of cuda/kernels to cuda/ptx, by nvcc; with --check, writes nothing and
                     exits with 1 if the PTX is stale
  gpu [ARGUMENTS]    builds the stripped release binary, of at most 40 MiB, and starts `equipart gpu-check` with
                     these arguments
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => ci::run(),
        ["release"] => release(),
        ["sanitize"] => long::sanitize_kernels(),
        ["mutants"] => mutants::run(),
        ["mpi"] => mpi::run(false),
        ["mpi", "--part"] => mpi::run(true),
        ["python"] => python::run(),
        ["edit"] => times::edited_layer(),
        ["course", ref names @ ..] if !names.iter().any(|name| name.starts_with('-')) => course::run(names),
        ["museum"] => museum::run(Selection::All),
        ["museum", "--changed"] => museum::run(Selection::Changed),
        ["museum", "--only", one] => museum::run(Selection::One(one)),
        ["-h" | "--help" | "help"]
        | [
            "ci" | "course" | "edit" | "release" | "mutants" | "paths" | "frames" | "faults" | "mpi"
            | "python" | "stops" | "kills" | "museum" | "sanitize" | "ptx" | "gpu",
            "-h" | "--help",
        ] => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        ["ptx"] => ptx::run(false),
        ["ptx", "--check"] => ptx::run(true),
        ["gpu", ref arguments @ ..] => gpu::run(arguments),
        [] => return refuse("No task is given"),
        ["course", ..] => {
            return refuse(
                "The task `course` takes only the name of an exercise, or `bug`, a number and a file",
            );
        }
        ["museum", ..] => return refuse("The task `museum` takes only `--only N` or `--changed`"),
        ["ptx", ..] => return refuse("The task `ptx` takes only `--check`"),
        [task @ ("ci" | "edit" | "mpi" | "mutants" | "python" | "release" | "sanitize"), ..] => {
            return refuse(&format!("The task `{task}` takes no arguments"));
        }
        [task, ref more @ ..] => match (long::ALL.iter().find(|long| long.task == task), more) {
            (Some(long), []) => long.run(None),
            (Some(long), ["--only", some]) => long.run(Some(some)),
            (Some(_), _) => {
                return refuse(&format!("The task `{task}` takes only `--only` and a value"));
            }
            (None, _) => return refuse(&format!("There is no task `{task}`")),
        },
    };
    done.unwrap_or_else(|why| {
        eprintln!("{why}");
        ExitCode::FAILURE
    })
}

/// Runs all that must pass before a release, up to the first task that fails.
fn release() -> TaskResult {
    let museum = || museum::run(Selection::All);
    let tasks =
        [ci::run, museum, course::planted::check, mutants::run, long::sanitize_kernels, times::edited_layer];
    for task in tasks {
        let done = task()?;
        if done != ExitCode::SUCCESS {
            return Ok(done);
        }
    }
    Ok(ExitCode::SUCCESS)
}
