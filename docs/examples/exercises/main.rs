//! `course`: lists the exercises with what is solved. `course NAME`: judges one; exits with 1 unless it is
//! solved.
use exercises::check::Verdict;
use exercises::{ALL, Exercise};
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => list(),
        [name] => match ALL.iter().find(|exercise| exercise.name == *name) {
            Some(exercise) => judge(exercise),
            None => refuse(&format!("there is no exercise {name:?}")),
        },
        more => refuse(&format!("{} names are given, and one is judged at a time", more.len())),
    }
}

fn list() -> ExitCode {
    for exercise in &ALL {
        let verdict = match (exercise.check)() {
            Verdict::Solved => "solved",
            Verdict::Unsolved => "-",
            Verdict::Wrong(_) => "wrong",
        };
        println!("{verdict:7} {:11} {:56} {}", exercise.name, exercise.task, exercise.file());
    }
    ExitCode::SUCCESS
}

fn judge(exercise: &Exercise) -> ExitCode {
    let verdict = (exercise.check)();
    println!("{}: {verdict}", exercise.name);
    if verdict == Verdict::Solved {
        return ExitCode::SUCCESS;
    }
    println!("to edit: {}", exercise.file());
    ExitCode::FAILURE
}

fn refuse(why: &str) -> ExitCode {
    let names: Vec<_> = ALL.iter().map(|exercise| exercise.name).collect();
    eprintln!("{why}: the exercises are {}", names.join(", "));
    ExitCode::from(2)
}
